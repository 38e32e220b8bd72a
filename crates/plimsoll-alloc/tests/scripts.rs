//! Captures, streams and given addresses: PyTorch's results for the programs in `oracle/scripts.txt`, recorded by
//! `oracle/scripts.cpp`, and our differences from them.

use std::collections::BTreeMap;

use plimsoll_alloc::{
    Addr, AddressError, Allocation, Allocator, Config, Error, Event, PoolId, Request, StreamId,
};

use crate::graphs::Graphs;

const BASE: u64 = 0x5000_0000_0000;

/// A running program.
struct Program {
    allocator: Allocator<Graphs, Vec<Event>>,
    live: BTreeMap<String, Allocation>,
    /// The redirects, newest last: the pool, and the capture whose requests go to it.
    redirections: Vec<(PoolId, u64)>,
    reported: usize,
}

impl Program {
    fn new() -> Self {
        let allocator = Allocator::new(Config::default(), Graphs::with_capacity(256 << 20), Vec::new());
        Self { allocator, live: BTreeMap::new(), redirections: Vec::new(), reported: 0 }
    }

    /// Runs a line. Returns the result in PyTorch's format.
    fn line(&mut self, line: &str) -> String {
        let mut words = line.split(' ');
        let op = words.next().unwrap();
        let words: Vec<&str> = words.collect();
        let number = |place: usize| words.get(place).map_or(0, |word| word.parse().unwrap());
        let stream = |place: usize| StreamId(number(place));
        let pool = PoolId(words.first().and_then(|word| word.parse().ok()).unwrap_or(0), {
            words.get(1).and_then(|word| word.parse().ok()).unwrap_or(0)
        });
        let answer = match op {
            "conf" => {
                self.allocator.set_config(Config::parse(words[0]).unwrap().config);
                String::new()
            }
            "a" | "at" => self.allocate(words[0], bytes(words[1]), stream(2), words.get(3).copied()),
            "f" => {
                let allocation = self.live.remove(words[0]).unwrap();
                self.allocator.free(allocation);
                String::new()
            }
            "rs" => {
                self.allocator.record_stream(&self.live[words[0]], stream(1));
                String::new()
            }
            "begin" => {
                let capture = self.allocator.driver().capture_of(stream(2)).unwrap();
                self.allocator.begin_allocate_to_pool(pool).unwrap();
                self.redirections.push((pool, capture));
                String::new()
            }
            "end" => {
                self.allocator.end_allocate_to_pool(pool).unwrap();
                self.redirections.retain(|&(of, _)| of != pool);
                String::new()
            }
            "release" => {
                self.allocator.release_pool(pool).unwrap();
                String::new()
            }
            "unsplit" => {
                self.allocator.set_no_split(pool);
                String::new()
            }
            "empty" => {
                let emptied = if pool == PoolId::DEFAULT {
                    self.allocator.empty_cache()
                } else {
                    self.allocator.empty_pool(pool)
                };
                emptied.map(|_| String::new()).unwrap()
            }
            "mark" => {
                self.allocator.begin_capture();
                String::new()
            }
            "unmark" => {
                self.allocator.end_capture();
                String::new()
            }
            "base" => {
                let (addr, bytes) = self.allocator.base_allocation(&self.live[words[0]]).unwrap();
                format!(" base {:x} {bytes};", addr.0 - BASE)
            }
            "largest" => format!(" largest {};", self.allocator.cache_info().largest_bytes.max(1)),
            "on" => {
                self.allocator.driver_mut().current = stream(0);
                String::new()
            }
            work => {
                self.allocator.driver_mut().work(work, stream(0), stream(1));
                String::new()
            }
        };
        self.news() + &answer
    }

    fn allocate(&mut self, name: &str, bytes: u64, stream: StreamId, at: Option<&str>) -> String {
        let before = std::mem::replace(&mut self.allocator.driver_mut().current, stream);
        let capture = self.allocator.driver().capture_of(stream);
        let newest = self.redirections.iter().rev().find(|&&(_, of)| Some(of) == capture);
        let pool = newest.map_or(PoolId::DEFAULT, |&(pool, _)| pool);
        let request = Request { stream, pool, ..Request::of(bytes) };
        let answer = match at {
            None => self.allocator.malloc(request),
            Some(at) => {
                let at = Addr(BASE + u64::from_str_radix(at, 16).unwrap());
                self.allocator.malloc_with_address(request, at)
            }
        };
        self.allocator.driver_mut().current = before;
        match answer {
            Ok(allocation) => {
                if let Some(old) = self.live.insert(name.to_owned(), allocation) {
                    self.allocator.free(old);
                }
                String::new()
            }
            Err(Error::Address(AddressError::Unaligned(_))) => " unaligned;".to_owned(),
            Err(Error::Address(AddressError::NotCached { .. })) => " not there;".to_owned(),
            Err(Error::OutOfMemory(_)) => " out of memory;".to_owned(),
            Err(why) => panic!("{why}"),
        }
    }

    /// The events since the last call, in the format of PyTorch's trace.
    fn news(&mut self) -> String {
        let of_block = |name: &str, block: &plimsoll_alloc::LiveBlock| {
            let at = block.addr.0 - BASE;
            format!(" {name} {at:x} {} {} {};", block.requested_bytes, block.stream.0, block.pool_id)
        };
        let of_segment = |name: &str, memory: &plimsoll_alloc::DeviceRange| {
            let at = memory.addr.0 - BASE;
            format!(" {name} {at:x} {} {} {};", memory.bytes, memory.stream.0, memory.pool_id)
        };
        let reported = std::mem::replace(&mut self.reported, self.allocator.observer().len());
        let news = self.allocator.observer()[reported..].iter().map(|event| match event {
            Event::Alloc { block, .. } => of_block("alloc", block),
            Event::Free { block, .. } => of_block("free_requested", block),
            Event::FreeCompleted { block, .. } => of_block("free_completed", block),
            Event::SegmentAlloc { memory, .. } => of_segment("segment_alloc", memory),
            Event::SegmentFree { memory, .. } => of_segment("segment_free", memory),
            Event::OutOfMemory { rounded_bytes, stream, pool_id, .. } => {
                format!(" oom 0 {rounded_bytes} {} {pool_id};", stream.0)
            }
            _ => String::new(),
        });
        let mut news: Vec<String> = news.collect();
        for completed in news.chunk_by_mut(|a, b| is_completed(a) && is_completed(b)) {
            completed.sort(); // PyTorch's order is that of a hash map
        }
        news.concat()
    }
}

fn is_completed(entry: &str) -> bool {
    entry.starts_with(" free_completed")
}

fn bytes(text: &str) -> u64 {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'K') => (&text[..text.len() - 1], 10),
        _ => (text, 0),
    };
    digits.parse::<u64>().unwrap() << shift
}

/// Replays programs with their results. Returns the number of lines.
fn replay(scripts: &str) -> usize {
    let (mut lines, mut program, mut title) = (0, Program::new(), "");
    let mut rest = scripts.lines();
    while let Some(line) = rest.next() {
        if line.is_empty() || line.starts_with('#') {
            (program, title) = (Program::new(), line);
            continue;
        }
        let expected = rest.next().unwrap().strip_prefix('=').unwrap();
        assert_eq!(program.line(line), expected, "{line:?}, line {lines} of {title:?}");
        program.allocator.check().unwrap();
        lines += 1;
    }
    lines
}

#[test]
fn captures_and_given_addresses_give_the_results_of_pytorch() {
    assert_eq!(replay(include_str!("oracle/scripts.txt")), 268);
}

/// PyTorch 2.15 reuses `x` at the join (`free_completed` right before `y`), although the use from before the capture
/// may still be running. We keep the block until an event is done.
#[test]
fn a_use_from_before_a_capture_is_waited_for_although_the_streams_joined_within() {
    let mut program = Program::new();
    let said: Vec<String> = [
        "conf graph_capture_record_stream_reuse:True",
        "a x 4M 0",
        "rs x 1",
        "mark",
        "capture 0",
        "begin 1 0 0",
        "kernel 0",
        "wait 1 0",
        "kernel 1",
        "rs x 1",
        "f x",
        "wait 0 1",
        "a y 4M 0",
        "endcapture 0",
        "unmark",
        "end 1 0",
        "a z 4M 0",
    ]
    .map(|line| program.line(line))
    .into();
    assert_eq!(said[12], " segment_alloc 1400000 20971520 0 1_0; alloc 1400000 4194304 0 1_0;");
    assert_eq!(said[16], " free_completed 0 4194304 0 0_0; alloc 0 4194304 0 0_0;");
}

/// PyTorch asserts on such a free.
#[test]
fn a_block_used_in_two_captures_is_kept_until_their_end() {
    let mut program = Program::new();
    for line in
        "conf graph_capture_record_stream_reuse:True;mark;capture 0;begin 1 0 0;mark;capture 2;begin 2 0 2;\
                 a x 4M 0;kernel 0;kernel 2;rs x 2;f x"
            .split(';')
    {
        program.line(line);
    }
    assert_eq!(program.line("a y 4M 0"), " alloc 400000 4194304 0 1_0;");
    for line in ["endcapture 2", "unmark", "end 2 0", "endcapture 0", "unmark"] {
        assert_eq!(program.line(line), "");
    }
    assert_eq!(program.line("end 1 0"), " free_completed 0 4194304 0 1_0;");
    program.allocator.check().unwrap();
}

#[test]
fn a_failing_capture_query_only_prevents_reuse() {
    let mut program = Program::new();
    for line in "conf graph_capture_record_stream_reuse:True;mark;capture 0;begin 1 0 0;a x 4M 0;kernel 0;\
                 wait 1 0;kernel 1;rs x 1;wait 0 1"
        .split(';')
    {
        program.line(line);
    }
    program.allocator.driver_mut().refuses = true;
    assert_eq!(program.line("f x"), " free_requested 0 4194304 0 1_0;");
    let request = Request { pool: PoolId(1, 0), ..Request::of(4 << 20) };
    assert!(
        matches!(program.allocator.malloc(request), Err(Error::Driver(_))),
        "the next request returns the error"
    );
    program.allocator.driver_mut().refuses = false;
    assert_eq!(program.line("a y 4M 0"), " alloc 400000 4194304 0 1_0;");
    for line in ["endcapture 0", "unmark"] {
        program.line(line);
    }
    assert_eq!(program.line("end 1 0"), " free_completed 0 4194304 0 1_0;");
    program.allocator.check().unwrap();
}
