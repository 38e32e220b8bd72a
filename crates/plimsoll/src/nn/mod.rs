//! Layers, with PyTorch's names, defaults and initialisation.
//!
//! A layer is built in a [`Scope`], which gives it its path: the owner of its bytes, and the source of its random numbers.
//! [`Module`] is the trait of layers and models (`module.rs`); it works on lists of their members (`member.rs`). A layer is
//! a file: a struct with its label, its [`Parameter`]s, [`Buffer`]s and [`Mode`]; a constructor; `impl Module` with
//! [`members!`](crate::members) and a `forward` that opens a span. `linear.rs` is an example.

mod activation;
mod attention_mask;
mod batch_norm;
mod conv;
mod definition;
mod dropout;
mod embedding;
mod functional_call;
pub mod init;
mod instance_norm;
mod linear;
mod list;
mod losses;
mod made;
mod member;
mod mode;
mod modes;
mod module;
mod module_hooks;
mod multihead_attention;
mod norm;
mod pad;
mod parallel_linear;
mod parameter;
mod parameter_vector;
mod per_channel;
mod pool;
mod recurrent;
mod residual;
mod scope;
mod sequential;
mod shape;
mod slot;
mod spectral_norm;
mod summary;
mod tensor_parallel;
mod transformer;
mod upsample;
mod vocab_parallel;
mod weight_norm;
mod weighted;
mod windows;

pub use activation::{
    Approximate, CELU, ELU, GELU, GLU, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU, LogSigmoid,
    LogSoftmax, Mish, PReLU, ReLU, ReLU6, SELU, SiLU, Sigmoid, Softmax, Softmin, Softplus, Softshrink,
    Softsign, Tanh, Tanhshrink, Threshold,
};
pub(crate) use batch_norm::cumulative;
pub use batch_norm::{BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNormConfig};
pub use conv::{
    Conv, Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, Conv3d, Conv3dConfig, ConvConfig, ConvTranspose,
    ConvTranspose1d, ConvTranspose1dConfig, ConvTranspose2d, ConvTranspose2dConfig, ConvTranspose3d,
    ConvTranspose3dConfig, ConvTransposeConfig, Extent,
};
pub use dropout::{AlphaDropout, ChannelDropout, Dropout, Dropout1d, Dropout2d, Dropout3d};
pub use embedding::{Embedding, EmbeddingBag};
pub use functional_call::functional_call;
pub use init::Init;
pub use instance_norm::{InstanceNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, InstanceNormConfig};
pub use linear::Linear;
pub use list::ModuleList;
pub use losses::{
    BCELoss, BCEWithLogitsLoss, CTCLoss, CosineEmbeddingLoss, CrossEntropyLoss, GaussianNLLLoss,
    HingeEmbeddingLoss, HuberLoss, KLDivLoss, L1Loss, MSELoss, MarginRankingLoss, MultiMarginLoss, NLLLoss,
    PoissonNLLLoss, SmoothL1Loss, SoftMarginLoss, TripletMarginLoss,
};
pub(crate) use made::{check_current, check_listed, check_whole, part_of};
pub use member::{IsMember, Layer, Member, MemberMut, Members, MembersMut};
#[doc(hidden)]
pub use member::{Replacement, field_name};
pub use mode::Mode;
pub(crate) use modes::Modes;
pub use module::Module;
pub(crate) use module::replace;
pub use module_hooks::{ModuleHookHandle, ModuleHooks};
pub use multihead_attention::{MultiheadAttention, MultiheadAttentionOptions, MultiheadOptions};
pub use norm::{GroupNorm, LayerNorm, LocalResponseNorm, RmsNorm};
pub use pad::Pad;
pub use parallel_linear::{ColumnParallelLinear, RowParallelLinear};
pub use parameter::{Buffer, Parameter};
pub use parameter_vector::{parameters_to_vector, vector_to_parameters};
pub use pool::{
    AdaptiveAvgPool, AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool,
    AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d, AvgPool, AvgPool1d, AvgPool2d, AvgPool3d,
    MaxPool, MaxPool1d, MaxPool2d, MaxPool3d, MaxUnpool, MaxUnpool1d, MaxUnpool2d, MaxUnpool3d,
};
pub use recurrent::{
    GRU, GRUCell, LSTM, LSTMCell, Nonlinearity, PackedSequence, RNN, RNNCell, RecurrentOptions,
};
pub(crate) use residual::{ResidualStream, Sublayers};
pub use scope::Scope;
pub use sequential::Sequential;
pub use shape::{ChannelShuffle, Flatten, Identity, PixelShuffle, PixelUnshuffle, Unflatten};
pub use slot::Slot;
pub use spectral_norm::SpectralNorm;
pub use summary::{Row, Summary};
pub(crate) use tensor_parallel::{Cut, Part, TensorParallel, gathered};
pub use transformer::{
    DecoderMasks, EncoderMasks, Transformer, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder,
    TransformerEncoderLayer, TransformerOptions,
};
pub use upsample::Upsample;
pub use vocab_parallel::VocabParallelEmbedding;
pub(crate) use vocab_parallel::cross_entropy as vocab_parallel_cross_entropy;
pub use weight_norm::WeightNorm;
pub use weighted::Weighted;
pub use windows::{Bilinear, Fold, Unfold};
