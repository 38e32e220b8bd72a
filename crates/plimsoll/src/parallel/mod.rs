//! Training one model on several ranks.
//!
//! | file | contents |
//! |---|---|
//! | `mesh.rs` | the ranks as a grid: [`DeviceMesh`] |
//! | `agree.rs` | comparing the models of all ranks |
//! | `lanes.rs` | the same bits on any number of ranks: [`Reproducible`] |
//! | `norm.rs` | clipping gradients by their norm, however they are sharded |
//! | `ddp/` | data-parallel training, where each rank has the full model and a part of the batch: [`DistributedDataParallel`] |
//! | `sharded/` | the same, but each rank has only its rows of the optimizer state, gradients or parameters: [`fully_shard`] |

mod agree;
mod ddp;
mod lanes;
mod mesh;
mod norm;
mod sharded;

pub use ddp::{Bucket, DdpOptions, DistributedDataParallel};
pub use lanes::{Reproducible, rank_seed};
pub use mesh::DeviceMesh;
pub use sharded::{
    FullyShardOptions, FullyShardedDataParallel, Shard, ShardedParameter, ShardedUnit, fully_shard,
};
