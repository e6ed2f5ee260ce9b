"""Every write of the fleet. Functions are atomic, take what they need by keyword and raise FleetError."""
