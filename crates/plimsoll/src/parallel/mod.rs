//! Training one model on several ranks.
//!
//! | file | contents |
//! |---|---|
//! | `ddp/` | data-parallel training, where each rank has the full model and a part of the batch: [`DistributedDataParallel`] |

mod ddp;

pub use ddp::{Bucket, DdpOptions, DistributedDataParallel};
