//! One model on several ranks.
//!
//! | file | contents |
//! |---|---|
//! | `ddp/` | data parallel: each rank has the whole model and a part of the batch: [`DistributedDataParallel`] |

mod ddp;

pub use ddp::{Bucket, DdpOptions, DistributedDataParallel};
