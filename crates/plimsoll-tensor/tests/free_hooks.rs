//! Hooks that run when a tensor's memory is freed.

use std::cell::RefCell;
use std::sync::mpsc;
use std::thread;

use plimsoll_tensor::label::{self, Span};
use plimsoll_tensor::{Device, Tensor};

#[test]
fn a_free_hook_runs_while_its_thread_ends() {
    thread_local! {
        static KEPT: RefCell<Option<Tensor>> = const { RefCell::new(None) };
    }
    // The tensor is dropped before or after the thread's list of spans.
    for tensor_first in [true, false] {
        let (sender, freed) = mpsc::channel();
        let work = move || {
            if tensor_first {
                KEPT.set(None);
            }
            let x = Tensor::ones(&[4], &Device::cpu()).unwrap();
            drop(Span::layer(label::intern("fc")));
            x.register_free_hook(move |freed| sender.send(freed.bytes).unwrap());
            KEPT.set(Some(x));
        };
        thread::spawn(work).join().unwrap();
        assert_eq!(freed.recv().unwrap(), 16);
    }
}
