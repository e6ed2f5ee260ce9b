"""What server and agent say to each other. Pure: no I/O, no clock, standard library only; both ends run this code."""
