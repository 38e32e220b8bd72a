//! scratch
use plimsoll_trace::explain::*;
use plimsoll_trace::timeline::Timeline;
fn main() {
    for p in std::env::args().skip(1) {
        let s = plimsoll_trace::input::open(p.as_ref()).unwrap();
        for d in s.devices() {
            let t = Timeline::of(&s, d);
            let o = Origins::of(&s);
            let ps = Passes::of(&s, s.trace(d), &o);
            let pu = Purposes::of(&s, &t, &o, &ps, true);
            let h = Holders::after(&t, &o, &pu, t.peak_allocated.after);
            println!(
                "== {} dev {d}: peak {:.3} GiB at {:?} of {} reserved {:.3}; passes {}",
                p.rsplit('/').next().unwrap(),
                h.bytes as f64 / 1073741824.0,
                h.after,
                t.quality.events,
                t.peak_reserved.level.reserved_bytes as f64 / 1073741824.0,
                ps.iter().count()
            );
            for r in &h.by_category {
                println!(
                    "  {:>8.1} MiB {:>5} {:?} {:?}",
                    r.bytes as f64 / 1048576.0,
                    r.blocks,
                    r.key.category,
                    r.key.why
                );
            }
            for r in h.by_line.iter().take(6) {
                let f = r.key.frame.map(|f| {
                    let f = s.stacks.get_frame(f);
                    format!(
                        "{}:{} {}",
                        s.texts.get(f.filename).rsplit('/').next().unwrap(),
                        f.line,
                        s.texts.get(f.name)
                    )
                });
                println!(
                    "     {:>8.1} {:>5} {:?} {:?}",
                    r.bytes as f64 / 1048576.0,
                    r.blocks,
                    f,
                    r.key.category
                );
            }
            for r in h.by_operator.iter().take(4) {
                println!(
                    "       op {:>8.1} {:?}",
                    r.bytes as f64 / 1048576.0,
                    r.key.map(|n| n.of(&s).to_owned())
                );
            }
        }
    }
}
