//! Collectives on bytes. Each is a single exchange of the transport.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::record::{Call, Content, Op, Record};
use crate::transport::{Part, Simulated, Threads, Transport};

/// How long the ranks of a group of threads wait for each other.
const THREADS_TIMEOUT: Duration = Duration::from_secs(60);

/// One rank of a group, and the collectives that it can call. All ranks must call the same collectives with the same sizes and
/// types, in the same order. Otherwise, every rank that notices returns an error. Calls from several threads of a rank wait for
/// each other.
///
/// ```
/// use plimsoll_dist::Communicator;
/// let alone = Communicator::threads(1).remove(0);
/// let mut bytes = *b"abcd";
/// alone.all_gather(&mut bytes, "letters")?;
/// alone.barrier()?;
/// assert_eq!((&bytes, alone.record().calls().count()), (b"abcd", 2));
/// # Ok::<(), plimsoll_dist::Error>(())
/// ```
#[derive(Debug)]
pub struct Communicator {
    transport: Arc<dyn Transport>,
    record: Mutex<Record>,
    /// The name of the group; empty for all ranks.
    group: String,
    /// This rank's collectives.
    calls: AtomicU64,
    /// Locked during a collective. This rank's groups share it, because they share connections.
    turn: Arc<Mutex<()>>,
    /// The latest call in any of this rank's groups, which share it.
    latest: Arc<Mutex<Option<Call>>>,
}

impl Communicator {
    /// A rank of a group whose ranks are connected by this transport.
    pub fn new(transport: impl Transport) -> Communicator {
        let (record, group, calls, turn, latest) = Default::default();
        Communicator { transport: Arc::new(transport), record, group, calls, turn, latest }
    }

    /// A group of some of this group's ranks, in ascending order. Its members must call this with the same ranks and
    /// the same name, which messages show. Groups with common members need different names. Like
    /// `torch.distributed.new_group` with `use_local_synchronization`.
    ///
    /// ```
    /// use plimsoll_dist::Communicator;
    /// let ranks = Communicator::threads(4);
    /// let part = ranks[3].new_group(&[1, 3], "odd")?;
    /// assert_eq!((part.rank(), part.size()), (1, 2));
    /// assert!(ranks[0].new_group(&[1, 3], "odd").is_err()); // not a member
    /// # Ok::<(), plimsoll_dist::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the ranks are not in ascending order, one is not a rank of this group, or this rank is not among them.
    pub fn new_group(&self, ranks: &[usize], name: &str) -> Result<Communicator> {
        let part = Part::of(Arc::clone(&self.transport), ranks).ok_or_else(|| {
            let why = format!(
                "{ranks:?} on rank {} of {}: give ranks in ascending order, this one among them",
                self.rank(),
                self.size()
            );
            Error::Argument { op: "new_group", why }
        })?;
        let (group, turn, latest) = (name.to_owned(), Arc::clone(&self.turn), Arc::clone(&self.latest));
        Ok(Communicator { group, turn, latest, ..Communicator::new(part) })
    }

    /// The same ranks, over connections of their own: its collectives may run at the same time as those of this group, on
    /// another thread. All ranks must call this. Like `MPI_Comm_dup`.
    ///
    /// ```
    /// use plimsoll_dist::Communicator;
    /// let alone = Communicator::threads(1).remove(0);
    /// assert_eq!(alone.duplicate()?.size(), 1);
    /// # Ok::<(), plimsoll_dist::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a rank cannot connect, is lost, late, or in another collective, or the transport has no second connections.
    pub fn duplicate(&self) -> Result<Communicator> {
        let call = self.begin(Op::AllGather, 16 * self.size(), Content::from("addresses"));
        let ranks: Vec<usize> = (0..self.size()).collect();
        let transport = self.transport.connect_again(&ranks, &call.call)?;
        let (record, calls, turn, latest) = Default::default();
        Ok(Communicator { transport, record, group: self.group.clone(), calls, turn, latest })
    }

    /// The name of the group; empty for all ranks.
    pub fn name(&self) -> &str {
        &self.group
    }

    /// One rank of a simulated group, for devices that compute nothing. It moves no bytes, and each of its collectives returns an
    /// error.
    pub fn simulated(rank: usize, size: usize) -> Communicator {
        Communicator::new(Simulated { rank, size })
    }

    /// The ranks of a group of threads. If one is dropped, the others treat it as lost.
    pub fn threads(size: usize) -> Vec<Communicator> {
        Threads::ranks(size, THREADS_TIMEOUT).into_iter().map(Communicator::new).collect()
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.transport.size()
    }

    /// The latest calls, and a hash of all calls.
    pub fn record(&self) -> Record {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops sending. The other ranks learn at once that this one no longer takes part.
    pub fn close(&self) {
        self.transport.close();
    }

    /// Fills a buffer with the parts of all ranks, in rank order. The buffer consists of `size` equal parts; the caller
    /// has stored this rank's part at index `rank`.
    ///
    /// # Errors
    /// If the buffer does not divide into equal parts, or a rank is lost, late, or in another collective.
    pub fn all_gather<'a>(&self, buffer: &mut [u8], content: impl Into<Content<'a>>) -> Result<()> {
        let part = self.part(Op::AllGather, buffer.len())?;
        let call = self.begin(Op::AllGather, buffer.len(), content.into());
        let (rank, mut own) = (self.rank(), &[][..]);
        let mut receive: Vec<&mut [u8]> = Vec::with_capacity(self.size());
        for (peer, piece) in pieces_mut(buffer, part, self.size()).enumerate() {
            if peer == rank {
                own = piece;
                receive.push(&mut []);
            } else {
                receive.push(piece);
            }
        }
        self.transport.exchange(&call.call, &vec![own; self.size()], &mut receive)
    }

    /// Sends part r of `send` to rank r, and fills part r of `receive` with what rank r sent to this rank.
    ///
    /// # Errors
    /// The same errors as [`Communicator::all_gather`]; also if the buffers differ in size.
    pub fn all_to_all<'a>(
        &self,
        send: &[u8],
        receive: &mut [u8],
        content: impl Into<Content<'a>>,
    ) -> Result<()> {
        let part = self.part(Op::AllToAll, send.len())?;
        if send.len() != receive.len() {
            let why =
                format!("{} bytes to send, but room for {}: both must be equal", send.len(), receive.len());
            return Err(Error::Argument { op: Op::AllToAll.name(), why });
        }
        let own = self.rank() * part;
        receive[own..own + part].copy_from_slice(&send[own..own + part]);
        let (before, rest) = receive.split_at_mut(own);
        self.exchange(send, [before, &mut rest[part..]], content.into())
    }

    /// Like [`Communicator::all_to_all`], but `receive` has no room for this rank's own part: the parts of the other
    /// ranks follow one another.
    ///
    /// # Errors
    /// The same errors as [`Communicator::all_gather`]; also if `receive` is not one part smaller than `send`.
    pub fn all_to_others<'a>(
        &self,
        send: &[u8],
        receive: &mut [u8],
        content: impl Into<Content<'a>>,
    ) -> Result<()> {
        let part = self.part(Op::AllToAll, send.len())?;
        if send.len() != receive.len() + part {
            let (own, room) = (send.len(), receive.len());
            let why = format!("{own} bytes to send, but room for {room}: {} are received", own - part);
            return Err(Error::Argument { op: Op::AllToAll.name(), why });
        }
        let (before, after) = receive.split_at_mut(self.rank() * part);
        self.exchange(send, [before, after], content.into())
    }

    /// Sends part r of `send` to rank r, and receives the parts of the ranks before this one, and of those after it.
    fn exchange(&self, send: &[u8], [before, after]: [&mut [u8]; 2], content: Content<'_>) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let part = send.len() / size;
        let call = self.begin(Op::AllToAll, send.len(), content);
        let sent: Vec<&[u8]> = (0..size)
            .map(|peer| if peer == rank { &[][..] } else { &send[peer * part..(peer + 1) * part] })
            .collect();
        let mut received: Vec<&mut [u8]> = pieces_mut(before, part, rank).collect();
        received.push(&mut []);
        received.extend(pieces_mut(after, part, size - rank - 1));
        self.transport.exchange(&call.call, &sent, &mut received)
    }

    /// Copies rank `root`'s buffer to all ranks.
    ///
    /// # Errors
    /// If `root` is not a rank, or a rank is lost, late, or in another collective.
    pub fn broadcast<'a>(
        &self,
        buffer: &mut [u8],
        root: usize,
        content: impl Into<Content<'a>>,
    ) -> Result<()> {
        if root >= self.size() {
            let why = format!("rank {root} of {}: ranks are numbered from 0", self.size());
            return Err(Error::Argument { op: Op::Broadcast.name(), why });
        }
        let Content { label, dtype } = content.into();
        let dtype = format!("{dtype} from rank {root}");
        let call = self.begin(Op::Broadcast, buffer.len(), Content { label, dtype: dtype.trim_start() });
        let none = || -> Vec<&mut [u8]> { (0..self.size()).map(|_| &mut [][..]).collect() };
        if self.rank() == root {
            return self.transport.exchange(&call.call, &vec![&*buffer; self.size()], &mut none());
        }
        let mut receive = none();
        receive[root] = buffer;
        self.transport.exchange(&call.call, &vec![&[][..]; self.size()], &mut receive)
    }

    /// Waits until all ranks have called this.
    ///
    /// # Errors
    /// If a rank is lost, late, or in another collective.
    pub fn barrier(&self) -> Result<()> {
        self.meet(&self.begin(Op::Barrier, 0, Content::default()))
    }

    /// Records a collective whose bytes the caller moves by other means, as for GPUs. With `checks`, first waits until
    /// all ranks have made this call, and compares it with theirs.
    ///
    /// # Errors
    /// With `checks`, if a rank is lost, late, or in another collective.
    pub fn announce<'a>(
        &self,
        op: Op,
        bytes: usize,
        content: impl Into<Content<'a>>,
        checks: bool,
    ) -> Result<()> {
        let call = self.begin(op, bytes, content.into());
        if checks { self.meet(&call) } else { Ok(()) }
    }

    /// After this rank has waited for `waited`, returns the reason why it should stop waiting for collectives that it
    /// announced: another rank is lost, or a collective has timed out. The error names this rank's latest call, which
    /// may belong to another group.
    pub fn gave_up(&self, waited: Duration) -> Option<Error> {
        // Ranks compare this with each other, so it must be a call in this group.
        let call = || self.record.lock().unwrap_or_else(PoisonError::into_inner).last().cloned();
        let error = self.transport.gave_up(waited, &call)?;
        Some(error.in_call(self.latest.lock().unwrap_or_else(PoisonError::into_inner).as_ref()))
    }

    /// Waits until all ranks have made this call, which moves no bytes.
    fn meet(&self, call: &Turn<'_>) -> Result<()> {
        let mut receive: Vec<&mut [u8]> = (0..self.size()).map(|_| &mut [][..]).collect();
        self.transport.exchange(&call.call, &vec![&[][..]; self.size()], &mut receive)
    }

    fn part(&self, op: Op, bytes: usize) -> Result<usize> {
        if bytes.is_multiple_of(self.size()) {
            return Ok(bytes / self.size());
        }
        let why = format!("{bytes} bytes do not divide into {} equal parts", self.size());
        Err(Error::Argument { op: op.name(), why })
    }

    /// Waits for this rank's previous collective to end, and records the new one.
    fn begin(&self, op: Op, bytes: usize, content: Content<'_>) -> Turn<'_> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (label, dtype, group) = (content.label.to_owned(), content.dtype.to_owned(), self.group.clone());
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let call = Call { number, op, bytes: bytes as u64, label, dtype, group };
        self.record.lock().unwrap_or_else(PoisonError::into_inner).push(call.clone());
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(call.clone());
        Turn { call, _turn: turn }
    }
}

/// A running collective. It holds the lock, so that other calls of this rank wait.
struct Turn<'a> {
    call: Call,
    _turn: MutexGuard<'a, ()>,
}

/// Splits a slice into `count` pieces of `size` bytes, which may be 0.
fn pieces_mut(mut rest: &mut [u8], size: usize, count: usize) -> impl Iterator<Item = &mut [u8]> {
    (0..count).map(move |_| {
        let (piece, after) = std::mem::take(&mut rest).split_at_mut(size);
        rest = after;
        piece
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Lost;

    /// A transport on which a rank is lost.
    #[derive(Debug)]
    struct Losing;

    impl Transport for Losing {
        fn rank(&self) -> usize {
            0
        }

        fn size(&self) -> usize {
            2
        }

        fn exchange(&self, _: &Call, _: &[&[u8]], _: &mut [&mut [u8]]) -> Result<()> {
            Ok(())
        }

        fn gave_up(&self, _: Duration, call: &dyn Fn() -> Option<Call>) -> Option<Error> {
            let lost = Lost { rank: 1, why: "is gone".to_owned(), ..Lost::default() };
            Some(Error::RankLost { lost: Box::new(lost), call: call() })
        }
    }

    #[test]
    fn a_rank_that_waits_for_a_lost_one_names_the_collective_of_its_group() {
        let world = Communicator::new(Losing);
        let said = || world.gave_up(Duration::ZERO).expect("an error").to_string();
        assert_eq!(said(), "rank 1 is gone");
        world.announce(Op::AllGather, 18, "loss", false).expect("a record");
        assert_eq!(said(), "rank 1 is gone\nthis rank was in all_gather 0 of `loss` (18 bytes)");
        let group = world.new_group(&[0], "tp").expect("a group");
        group.announce(Op::AllToAll, 64, "h.1.mlp", false).expect("a record");
        assert_eq!(
            said(),
            "rank 1 is gone\nthis rank was in all_to_all 0 of `h.1.mlp` (64 bytes, group `tp`)"
        );
    }
}
