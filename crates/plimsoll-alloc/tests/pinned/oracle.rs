//! PyTorch's own scenarios, corner cases that they omit, and random programs. Each step is compared with PyTorch 2.15:
//! the address of each block, the device calls in order, and all 28 statistics.

use std::collections::BTreeMap;

use plimsoll_alloc::{
    DeviceStream, During, PinnedAllocation, PinnedAllocator, PinnedConfig, PinnedRequest, PinnedStats,
    PoolId, StreamId,
};
use serde_json::Value;

use super::recorded::{Recorded, place};

#[test]
fn every_step_equals_pytorchs() {
    let oracle: Value = serde_json::from_str(include_str!("oracle.json")).unwrap();
    let keys: Vec<&str> = oracle["keys"].as_array().unwrap().iter().map(text).collect();
    assert_eq!(keys, PinnedStats::default().host_memory_stats().keys().collect::<Vec<_>>());
    let mut steps = 0;
    for scenario in oracle["scenarios"].as_array().unwrap() {
        let mut replay = Replay::new(scenario);
        for (nth, step) in scenario["steps"].as_array().unwrap().iter().enumerate() {
            replay.step(nth, step, &keys);
            steps += 1;
        }
    }
    assert_eq!(steps, 976);
}

/// A running scenario.
struct Replay {
    name: String,
    config: PinnedConfig,
    pinned: PinnedAllocator<Recorded, PinnedStats>,
    blocks: BTreeMap<String, PinnedAllocation>,
    /// Each graph's pool and stream.
    graphs: BTreeMap<String, (PoolId, u64)>,
    capture: Option<(PoolId, u64)>,
    captures: u64,
    drops: u64,
    expected: BTreeMap<String, i64>,
}

impl Replay {
    fn new(scenario: &Value) -> Self {
        let config = configured(PinnedConfig::default(), text(&scenario["conf"]));
        let pinned = PinnedAllocator::new(config, Recorded::default(), PinnedStats::default());
        Self {
            name: text(&scenario["name"]).to_owned(),
            config,
            expected: pinned.observer().host_memory_stats(),
            pinned,
            blocks: BTreeMap::new(),
            graphs: BTreeMap::new(),
            capture: None,
            captures: 0,
            drops: 0,
        }
    }

    /// Runs one step, and compares everything that is observable.
    fn step(&mut self, nth: usize, step: &Value, keys: &[&str]) {
        let at = format!("{} step {nth} {}", self.name, step["op"]);
        let calls = step["calls"].as_array().into_iter().flatten();
        let host = self.pinned.driver_mut();
        (host.step, host.calls) = (at.clone(), calls.map(|call| text(call).to_owned()).collect());
        let placed = self.act(&step["op"]);
        assert_eq!(placed.as_deref(), step["at"].as_str(), "{at}");
        assert!(
            self.pinned.driver().calls.is_empty(),
            "{at}: PyTorch also asked {:?}",
            self.pinned.driver().calls
        );
        for change in step["stats"].as_array().into_iter().flatten() {
            let key = keys[change[0].as_u64().unwrap() as usize];
            self.expected.insert(key.to_owned(), change[1].as_i64().unwrap());
        }
        assert_eq!(self.pinned.observer().host_memory_stats(), self.expected, "{at}");
        self.pinned.check().unwrap_or_else(|broken| panic!("{at}: {broken}"));
    }

    /// Repeats PyTorch's step. For a request, returns the block's place in PyTorch's format.
    fn act(&mut self, op: &Value) -> Option<String> {
        let name = || text(&op[1]).to_owned();
        match text(&op[0]) {
            "alloc" => return Some(self.alloc(op)),
            "use" => {
                let on = DeviceStream { device: 0, stream: StreamId(op[2].as_u64().unwrap()) };
                assert!(self.pinned.record_event(self.blocks[&name()].addr(), on));
            }
            "free" => drop(self.pinned.free(self.blocks.remove(&name()).unwrap())),
            "empty" => drop(self.pinned.empty_cache().unwrap()),
            "reset_peak" => self.pinned.observer_mut().reset_peak(),
            "reset_accumulated" => self.pinned.observer_mut().reset_accumulated(),
            "set" => {
                self.config = configured(self.config, text(&op[1]));
                self.pinned.set_config(self.config);
            }
            "begin" => self.begin(op),
            "end" => self.pinned.end_allocate_to_pool(self.capture.take().unwrap().0).unwrap(),
            "drop" => {
                self.pinned.release_pool(self.graphs.remove(&name()).unwrap().0).unwrap();
                self.drops += 1;
                self.pinned.driver_mut().unpins_in_any_order = self.drops > 1;
            }
            "finish" | "fail" => {} // the recorded calls already include the effect
            other => panic!("no such step: {other}"),
        }
        None
    }

    fn alloc(&mut self, op: &Value) -> String {
        let of_capture = self.capture.filter(|&(_, stream)| op[3].as_u64() == Some(stream));
        let (pool, during) = match of_capture {
            Some((pool, _)) => (pool, During::Capture),
            None => (PoolId::DEFAULT, During::Eager),
        };
        match self.pinned.alloc(PinnedRequest { bytes: op[2].as_u64().unwrap(), pool, during }) {
            Ok(block) => {
                let first = block.addr();
                self.blocks.insert(text(&op[1]).to_owned(), block);
                let nth = place("0+0").0;
                format!("{}+{}", first.0 / nth - 1, first.0 % nth)
            }
            Err(_) => "refused".to_owned(),
        }
    }

    fn begin(&mut self, op: &Value) {
        self.captures += 1;
        let pool = op[3].as_str().map_or(PoolId(self.captures, 0), |like| self.graphs[like].0);
        let capture = (pool, op[2].as_u64().unwrap());
        self.pinned.begin_allocate_to_pool(pool).unwrap();
        self.graphs.insert(text(&op[1]).to_owned(), capture);
        self.capture = Some(capture);
    }
}

/// Applies a PyTorch configuration string to the current options, without resetting any of them.
fn configured(config: PinnedConfig, conf: &str) -> PinnedConfig {
    conf.split(',').filter(|option| !option.is_empty()).fold(config, |config, option| {
        let (key, mib) = option.split_once(':').unwrap();
        let bytes = mib.parse::<u64>().unwrap() << 20;
        match key {
            "pinned_max_round_threshold_mb" => config.with_max_round_threshold_bytes(Some(bytes)),
            "pinned_max_cached_size_mb" => config.with_max_cached_bytes(Some(bytes)),
            "pinned_reserve_segment_size_mb" => config.with_reserve_segment_bytes(bytes),
            other => panic!("no such option: {other}"),
        }
        .unwrap()
    })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}
