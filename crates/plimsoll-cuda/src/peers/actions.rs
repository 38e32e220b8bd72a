//! What each rank does in a collective: [`actions`].

use crate::collective::Collective;

/// A flag that one rank sets for another. See Note [Flags of peers].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flag {
    Ready,
    Done,
}

/// One step of a rank in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Sets this rank's flag for another one.
    Set(Flag, usize),
    /// Waits for another rank's flag for this one, and clears it.
    Wait(Flag, usize),
    /// Copies bytes of rank `of`, at `offset` in the memory that it lets others read, to an address of this rank.
    Copy { to: u64, of: usize, offset: u64, bytes: u64 },
}

/// The actions of one rank in a collective. See Note [Flags of peers].
pub(super) fn actions(collective: Collective, rank: usize, size: usize) -> Vec<Action> {
    let copy = |of: usize| match collective {
        Collective::AllGather { buffer, part_bytes: bytes } => {
            let offset = of as u64 * bytes;
            Some(Action::Copy { to: buffer + offset, of, offset, bytes })
        }
        Collective::AllToAll { receive, part_bytes: bytes, keeps_own, .. } => {
            let to = receive + Collective::place(of, rank, keeps_own) * bytes;
            Some(Action::Copy { to, of, offset: rank as u64 * bytes, bytes })
        }
        Collective::Broadcast { .. } => None,
    };
    // Each rank begins with the next one, so that all links are in use.
    let others = || (1..size).map(|step| (rank + step) % size);
    let mut actions: Vec<Action> = others().map(|other| Action::Set(Flag::Ready, other)).collect();
    if let Collective::AllToAll { keeps_own: true, .. } = collective {
        // Beside kernels this one is slow: copies within a device take multiprocessors.
        actions.extend(copy(rank));
    }
    actions.extend(others().map(|other| Action::Wait(Flag::Ready, other)));
    actions.extend(others().filter_map(copy));
    actions.extend(others().map(|other| Action::Set(Flag::Done, other)));
    actions.extend(others().map(|other| Action::Wait(Flag::Done, other)));
    actions
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    /// A rank of a group whose device is a thread: it carries actions out on memory of the process.
    fn act(actions: &[Action], rank: usize, flags: &[AtomicU32], size: usize, memory: &[Vec<AtomicU32>]) {
        let flag = |flag: Flag, to: usize, from: usize| &flags[(flag as usize * size + to) * size + from];
        for action in actions {
            match *action {
                Action::Set(kind, other) => {
                    let before = flag(kind, other, rank).swap(1, Ordering::SeqCst);
                    assert_eq!(before, 0, "{kind:?} of rank {rank} for {other} was set twice");
                }
                Action::Wait(kind, other) => {
                    while flag(kind, rank, other).load(Ordering::SeqCst) == 0 {
                        thread::yield_now();
                    }
                    flag(kind, rank, other).store(0, Ordering::SeqCst);
                }
                Action::Copy { to, of, offset, bytes } => {
                    for at in 0..bytes as usize {
                        let value = memory[of][offset as usize + at].load(Ordering::SeqCst);
                        memory[rank][to as usize + at].store(value, Ordering::SeqCst);
                    }
                }
            }
        }
    }

    #[test]
    fn collectives_in_a_row_move_the_right_bytes() {
        const PART: usize = 3;
        for size in 2..5 {
            let flags: Vec<AtomicU32> = (0..2 * size * size).map(|_| AtomicU32::new(0)).collect();
            // The memory that others read, and after it the received parts.
            let words = || (0..2 * size * PART).map(|_| AtomicU32::new(0)).collect();
            let memory: Vec<Vec<AtomicU32>> = (0..size).map(|_| words()).collect();
            let part_bytes = PART as u64;
            thread::scope(|scope| {
                for rank in 0..size {
                    let (flags, memory) = (&flags, &memory);
                    scope.spawn(move || {
                        for round in 1..200u32 {
                            let value = |of: usize, part: usize| round * 100 + (of * size + part) as u32;
                            let fill = |part: usize| {
                                let words = &memory[rank][part * PART..(part + 1) * PART];
                                words.iter().for_each(|word| word.store(value(rank, part), Ordering::SeqCst));
                            };
                            let is = |at: usize, wanted: u32| {
                                let word = memory[rank][at * PART + PART - 1].load(Ordering::SeqCst);
                                assert_eq!(
                                    word, wanted,
                                    "place {at} of rank {rank} of {size}, round {round}"
                                );
                            };
                            (0..size).for_each(fill);
                            let receive = (size * PART) as u64;
                            for keeps_own in [true, false] {
                                let exchange =
                                    Collective::AllToAll { send: 0, receive, part_bytes, keeps_own };
                                act(&actions(exchange, rank, size), rank, flags, size, memory);
                                for of in (0..size).filter(|of| keeps_own || *of != rank) {
                                    let place = Collective::place(of, rank, keeps_own) as usize;
                                    is(size + place, value(of, rank));
                                }
                            }
                            fill(rank);
                            let gather = Collective::AllGather { buffer: 0, part_bytes };
                            act(&actions(gather, rank, size), rank, flags, size, memory);
                            (0..size).for_each(|of| is(of, value(of, of)));
                        }
                    });
                }
            });
            assert!(flags.iter().all(|flag| flag.load(Ordering::SeqCst) == 0));
        }
    }
}
