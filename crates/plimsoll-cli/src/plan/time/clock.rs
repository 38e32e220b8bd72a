//! A step timed by two clocks, the host's and the GPU's: [`step_s`].

/// The number of launches that the driver queues before the host waits.
const QUEUED: usize = 1024;
/// How many steps to replay: in the first steps, the queue is not as full as later.
const STEPS: usize = 4;

/// What the host does during a step, in order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Event {
    /// The host launches an operator that takes this many seconds on the GPU.
    Launch(f64),
    /// The host waits until all operators are done, for example to read a loss.
    Wait,
}

/// The seconds that a step takes if the host works for `host_s` seconds, spread evenly over the launches. The GPU runs
/// operators in order.
pub(super) fn step_s(events: &[Event], host_s: f64) -> f64 {
    let launches = events.iter().filter(|it| matches!(it, Event::Launch(_))).count();
    if launches == 0 {
        return host_s;
    }
    let each_s = host_s / launches as f64;
    let (mut host, mut gpu, mut begun) = (0.0_f64, 0.0_f64, 0.0);
    let mut ends = Vec::with_capacity(launches * STEPS);
    for step in 0..STEPS {
        if step + 1 == STEPS {
            begun = host.max(gpu);
        }
        for event in events {
            match *event {
                Event::Launch(seconds) => {
                    host += each_s;
                    if let Some(place) = ends.len().checked_sub(QUEUED) {
                        host = host.max(ends[place]);
                    }
                    gpu = gpu.max(host) + seconds;
                    ends.push(gpu);
                }
                Event::Wait => host = host.max(gpu),
            }
        }
    }
    host.max(gpu) - begun
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(seconds: &[f64], waits_after: &[usize]) -> Vec<Event> {
        let launch = |(place, &seconds): (usize, &f64)| {
            let wait = waits_after.contains(&place).then_some(Event::Wait);
            std::iter::once(Event::Launch(seconds)).chain(wait)
        };
        seconds.iter().enumerate().flat_map(launch).collect()
    }

    #[track_caller]
    fn close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 1e-9, "{actual} s, expected {expected} s");
    }

    #[test]
    fn without_waits_the_slower_of_host_and_gpu_decides() {
        let events = step(&[1.0, 3.0, 1.0, 1.0], &[]);
        close(step_s(&events, 2.0), 6.0);
        close(step_s(&events, 40.0), 40.0);
        close(step_s(&[], 2.0), 2.0);
    }

    #[test]
    fn a_wait_leaves_the_gpu_idle_until_the_host_has_launched_again() {
        // Each launch takes the host a second. The GPU finishes 1 + 6 s after the step began.
        close(step_s(&step(&[3.0, 3.0], &[1]), 2.0), 7.0);
        // The host waits twice: 1 + 3, and again 1 + 3.
        close(step_s(&step(&[3.0, 3.0], &[0, 1]), 2.0), 8.0);
    }

    #[test]
    fn the_host_is_at_most_a_full_queue_ahead() {
        // The first half of the step is slow on the GPU; the host cannot run ahead to the fast half of the next step.
        let seconds: Vec<f64> = [[2.0; 4 * QUEUED], [0.0; 4 * QUEUED]].concat();
        let events = step(&seconds, &[]);
        let launches = seconds.len() as f64;
        let step_s = step_s(&events, launches);
        assert!(step_s > 1.3 * launches && step_s < 1.4 * launches, "{step_s} s");
    }
}
