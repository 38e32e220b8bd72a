// Puts the drawings into the page. The last of the scripts, which are joined in the order of SCRIPT (mod.rs).

function show(section, device, kinds, nth) {
  const part = (name) => section.querySelector(`.drawn.${name}`);
  for (const drawn of section.querySelectorAll(".drawn")) drawn.hidden = false;
  const { at, ends, rows, names } = { ...device.moments, at: words(device.moments.at), ends: words(device.moments.ends), rows: words(device.moments.rows) };
  if (part("icicle")) new Icicle(part("icicle"), device.icicle);
  const map = part("map") && new SegmentMap(part("map"), device.map, kinds, device, at);
  if (!part("timeline")) {
    map?.show(0);
    return { map };
  }
  const explain = (moment, timeline) => {
    const before = placeOf(at.length, (nth) => at[nth], moment);
    const isNext = before + 1 < at.length && at[before + 1] - moment < Math.abs(moment - at[before]);
    const nearest = before + (isNext ? 1 : 0);
    timeline.root.querySelector(".of").textContent =
      `The largest lines ${at[nearest] === moment ? "then" : `at ${eventOf(at[nearest])}, the nearest of ${at.length} moments that are kept`}`;
    const table = timeline.root.querySelector(".lines tbody");
    table.replaceChildren();
    for (let place = nearest ? ends[nearest - 1] : 0; place < ends[nearest]; place++) {
      const [name, kind, grains, blocks] = rows.slice(place * 4, place * 4 + 4);
      row(table, [size(grains * GRAIN), `${count(blocks)} ${blocks === 1 ? "block" : "blocks"}`, swatch(kind, kinds[kind]), names[name]]);
    }
    map?.show(nearest);
    link(`#${nth}-${moment - 1}`);
  };
  return { timeline: new Timeline(part("timeline"), device, explain), map };
}

let isReady = false;
/** Keeps the moment in the address, so that it can be passed on. */
function link(hash) {
  if (isReady) history.replaceState(null, "", hash);
}

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const sections = [...document.querySelectorAll("section.device")];
  const shown = sections.map((section, nth) => show(section, data.devices[nth], data.kinds, nth));
  const [, device, moment] = location.hash.match(/^#(\d+)-(-?\d+)$/) || [];
  const draw = () => shown.forEach(({ timeline, map }) => (timeline?.draw(), map?.draw()));
  draw();
  shown.forEach(({ timeline }) => timeline?.panel());
  shown[device]?.timeline?.pick(Number(moment) + 1);
  isReady = true;
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", draw);
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    draw();
  }).observe(document.body);
}

start();
