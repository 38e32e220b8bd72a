//! The statistics under PyTorch's flat keys: [`Stats::memory_stats`].

use std::collections::BTreeMap;

use super::{PoolStats, Stat, Stats};

impl Stats {
    /// The entries of `torch.cuda.memory_stats()` under the same keys: 123, and 12 more for each private pool
    /// that ever had memory. `max_split_size` is -1 if there is no limit.
    pub fn memory_stats(&self) -> BTreeMap<String, i64> {
        let mut entries = BTreeMap::new();
        for (name, stats) in self.arrays() {
            for (pool, stat) in stats.each() {
                add(&mut entries, &format!("{name}.{pool}"), stat);
            }
        }
        for (pool_id, stats) in self.reserved_bytes_by_private_pools() {
            for (pool, stat) in stats.each() {
                add(&mut entries, &format!("reserved_bytes_by_private_pools.{pool_id}.{pool}"), stat);
            }
        }
        add(&mut entries, "oversize_allocations", self.oversize_allocations);
        add(&mut entries, "oversize_segments", self.oversize_segments);
        let scalars = [
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("num_sync_all_streams", self.num_sync_all_streams),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
            ("num_oom_rejections", self.num_oom_rejections),
            ("max_split_size", self.max_split_bytes.map_or(-1, |bytes| bytes as i64)),
        ];
        entries.extend(scalars.map(|(name, value)| (name.to_owned(), value)));
        entries
    }

    /// The statistics with PyTorch's names.
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
