// Pages that renew themselves: what stands there is never older than it says, and nothing that is read is pulled away.
(() => {
  const OLD_AFTER_MS = 12_000; // two renewals were missed
  let heard = Date.now();
  let open = [];
  const page = () => document.getElementById("live");
  const ours = (event) => event.detail.target && event.detail.target.id === "live";

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (!ours(event)) return;
    const chosen = document.getSelection();
    const reading = chosen && !chosen.isCollapsed && page().contains(chosen.anchorNode);
    if (reading || document.hidden) event.preventDefault(); // a page that nobody sees costs nothing
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (!ours(event)) return;
    // An error page, or the login page of an ended session, is no news of the fleet.
    event.detail.shouldSwap = event.detail.xhr.status === 200 && event.detail.serverResponse.includes('id="live"');
    open = [...page().querySelectorAll("details[open][id]")].map((each) => each.id);
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (!ours(event)) return;
    heard = Date.now();
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  });
  // A list stays as it was opened, so that nothing moves under a choice; it says when it is old.
  setTimeout(() => document.getElementById("listed")?.classList.add("fleet-stale"), 60_000);
  setInterval(() => page()?.classList.toggle("fleet-stale", Date.now() - heard > OLD_AFTER_MS), 1_000);
})();
