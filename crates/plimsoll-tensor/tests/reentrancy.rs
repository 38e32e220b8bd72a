//! Code that runs inside an allocation may call anything: we hold no lock while memory is allocated.
//!
//! Each test runs on its own thread and fails if that thread does not return.

use std::sync::mpsc;
use std::time::Duration;

use plimsoll_tensor::{Device, SimConfig, Tensor};

/// Runs `body` on another thread and waits for it; only a deadlock takes longer than the timeout.
fn within_a_minute<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(body()));
    receive.recv_timeout(Duration::from_secs(60)).expect("it never returned, or panicked")
}

#[test]
fn an_out_of_memory_observer_may_read_the_gradient_that_backward_makes() {
    let seen = within_a_minute(|| {
        let device = Device::sim(SimConfig::new(1 << 30));
        let w = Tensor::ones(&[512, 512], &device).unwrap().requires_grad_(true).unwrap();
        let b = Tensor::ones(&[512, 512], &device).unwrap().requires_grad_(true).unwrap();
        // Both leaves get the same gradient, so each makes its own copy.
        let loss = (&w + &b).unwrap();
        let start = Tensor::ones(&[512, 512], &device).unwrap();
        device.set_memory_limit(device.memory_reserved());
        let held: Vec<Tensor> =
            std::iter::from_fn(|| Tensor::ones(&[512, 512], &device).ok()).take(1000).collect();
        let (send, receive) = mpsc::channel();
        let leaves = [w.clone(), b.clone()];
        device.on_out_of_memory(move |_| {
            send.send(leaves.iter().map(|leaf| leaf.grad().is_some()).collect::<Vec<_>>()).unwrap();
        });
        let options = plimsoll_tensor::BackwardOptions { gradient: Some(start), ..Default::default() };
        loss.backward_with(options).unwrap_err().out_of_memory().expect("no room for the copy");
        drop(held);
        receive.try_recv().expect("the observer was called")
    });
    assert_eq!(seen, [false, false]);
}
