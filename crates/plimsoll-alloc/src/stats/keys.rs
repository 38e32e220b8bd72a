//! The statistics under PyTorch's flat keys: [`Stats::memory_stats`].

use std::collections::BTreeMap;

use super::{PoolStats, Stat, Stats};

impl Stats {
    /// The 123 entries of `torch.cuda.memory_stats()` in a process without private pools, under the same
    /// keys. Entries of what this allocator does not do are 0; `max_split_size` is -1, which means no limit.
    pub fn memory_stats(&self) -> BTreeMap<String, i64> {
        let mut entries = BTreeMap::new();
        for (name, stats) in self.arrays() {
            for (pool, stat) in stats.each() {
                add(&mut entries, &format!("{name}.{pool}"), stat);
            }
        }
        add(&mut entries, "oversize_allocations", Stat::default());
        add(&mut entries, "oversize_segments", Stat::default());
        let scalars = [
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("num_sync_all_streams", self.num_sync_all_streams),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
            ("num_oom_rejections", 0),
            ("max_split_size", -1),
        ];
        entries.extend(scalars.map(|(name, value)| (name.to_owned(), value)));
        entries
    }

    /// The statistics by PyTorch's names.
    pub(crate) fn arrays(&self) -> [(&'static str, PoolStats); 9] {
        [
            ("allocation", self.allocation()),
            ("segment", self.segment()),
            ("active", self.active()),
            ("inactive_split", self.inactive_split()),
            ("allocated_bytes", self.allocated_bytes()),
            ("reserved_bytes", self.reserved_bytes()),
            ("active_bytes", self.active_bytes()),
            ("inactive_split_bytes", self.inactive_split_bytes()),
            ("requested_bytes", self.requested_bytes()),
        ]
    }
}

impl PoolStats {
    /// The statistic for each of PyTorch's pool names.
    fn each(&self) -> [(&'static str, Stat); 3] {
        [("all", self.all), ("small_pool", self.small_pool), ("large_pool", self.large_pool)]
    }
}

fn add(entries: &mut BTreeMap<String, i64>, prefix: &str, stat: Stat) {
    let Stat { current, peak, allocated, freed } = stat;
    for (name, value) in [("current", current), ("peak", peak), ("allocated", allocated), ("freed", freed)] {
        entries.insert(format!("{prefix}.{name}"), value);
    }
}
