//! NCCL's environment variables that change its memory use: [`Variables`].

/// The variables that the model reads. Other variables that begin with `NCCL_` do not change the memory use, or are not modelled.
///
/// ```
/// assert!(plimsoll_gpu::nccl::KNOWN.contains(&"NCCL_BUFFSIZE"));
/// ```
pub const KNOWN: [&str; 17] = [
    "NCCL_BUFFSIZE",
    "NCCL_LL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_P2P_NCHANNELS",
    "NCCL_MAX_P2P_NCHANNELS",
    "NCCL_NCHANNELS_PER_NET_PEER",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_CUMEM_ENABLE",
    "NCCL_RUNTIME_CONNECT",
    "NCCL_NVLS_ENABLE",
    "NCCL_NVLS_NCHANNELS",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_ALGO",
];

/// The values of the variables, or NCCL's defaults.
///
/// ```
/// use plimsoll_gpu::nccl::Variables;
/// let set = |name: &str| (name == "NCCL_BUFFSIZE").then(|| "1048576".to_owned());
/// assert_eq!(Variables::read(set).buffer_bytes, 1 << 20);
/// assert_eq!(Variables::default().buffer_bytes, 4 << 20);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variables {
    /// The size of a channel's buffer for the protocol Simple: `NCCL_BUFFSIZE`.
    pub buffer_bytes: u64,
    /// The size of a channel's buffer for the protocol LL.
    pub ll_bytes: u64,
    /// The size of a channel's buffer for the protocol LL128.
    pub ll128_bytes: u64,
    /// The minimum number of channels for collectives.
    pub min_channels: Option<u32>,
    /// The maximum number of channels for collectives.
    pub max_channels: Option<u32>,
    /// The minimum number of channels between peers.
    pub min_p2p_channels: Option<u32>,
    /// The maximum number of channels between peers.
    pub max_p2p_channels: Option<u32>,
    /// The number of channels to a peer on another machine.
    pub per_net_peer: Option<u32>,
    /// Whether GPUs may access each other's memory.
    pub p2p: bool,
    /// Whether ranks on the same machine may use the host's shared memory.
    pub shm: bool,
    /// Whether NCCL allocates with `cuMemCreate`, the default since the CUDA 12.0 drivers.
    pub cumem: bool,
    /// Whether buffers are allocated by the first collective that needs them. Effective since NCCL 2.22.
    pub runtime_connect: bool,
    /// Whether NVLS (reductions in the NVLink switch) may be used, if the GPUs support it.
    pub nvls: bool,
    /// The number of channels for NVLS.
    pub nvls_channels: Option<u32>,
    /// Whether network cards may access a GPU's memory.
    pub net_gdr: bool,
    /// The value of `NCCL_ALGO`, in lower case.
    pub algorithms: Option<String>,
}

impl Default for Variables {
    fn default() -> Variables {
        Variables {
            buffer_bytes: 4_194_304,
            ll_bytes: 524_288,
            ll128_bytes: 4_915_200,
            min_channels: None,
            max_channels: None,
            min_p2p_channels: None,
            max_p2p_channels: None,
            per_net_peer: None,
            p2p: true,
            shm: true,
            cumem: true,
            runtime_connect: true,
            nvls: true,
            nvls_channels: None,
            net_gdr: true,
            algorithms: None,
        }
    }
}

impl Variables {
    /// Reads the variables. `get` returns the value of a variable. A value that is not a number counts as unset, as in
    /// NCCL.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Variables {
        let text = |name| get(name).map(|text| text.trim().to_ascii_lowercase()).filter(|it| !it.is_empty());
        let number = |name| text(name).and_then(|text| text.parse::<i64>().ok());
        // Negative numbers mean the default.
        let bytes = |name, default| number(name).and_then(|it| u64::try_from(it).ok()).unwrap_or(default);
        let count = |name| number(name).and_then(|it| u32::try_from(it).ok());
        let is_on = |name, default| number(name).map_or(default, |it| if it < 0 { default } else { it != 0 });
        let of_zero = |name| text(name).is_some_and(|it| it == "0" || it == "loc");
        let default = Variables::default();
        Variables {
            buffer_bytes: bytes("NCCL_BUFFSIZE", default.buffer_bytes),
            ll_bytes: bytes("NCCL_LL_BUFFSIZE", default.ll_bytes),
            ll128_bytes: bytes("NCCL_LL128_BUFFSIZE", default.ll128_bytes),
            min_channels: count("NCCL_MIN_NCHANNELS"),
            max_channels: count("NCCL_MAX_NCHANNELS").filter(|it| *it > 0),
            min_p2p_channels: count("NCCL_MIN_P2P_NCHANNELS"),
            max_p2p_channels: count("NCCL_MAX_P2P_NCHANNELS").filter(|it| *it > 0),
            per_net_peer: count("NCCL_NCHANNELS_PER_NET_PEER").filter(|it| *it > 0),
            p2p: !is_on("NCCL_P2P_DISABLE", false) && !of_zero("NCCL_P2P_LEVEL"),
            shm: !is_on("NCCL_SHM_DISABLE", false),
            cumem: is_on("NCCL_CUMEM_ENABLE", true),
            runtime_connect: is_on("NCCL_RUNTIME_CONNECT", true),
            nvls: is_on("NCCL_NVLS_ENABLE", true),
            nvls_channels: count("NCCL_NVLS_NCHANNELS").filter(|it| *it > 0),
            net_gdr: !of_zero("NCCL_NET_GDR_LEVEL"),
            algorithms: text("NCCL_ALGO"),
        }
    }

    /// Whether `NCCL_ALGO` allows only this algorithm, such as `tree`.
    pub fn is_only(&self, algorithm: &str) -> bool {
        self.algorithms.as_deref() == Some(algorithm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Variables {
        Variables::read(|name| set.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn nothing_set_gives_the_defaults() {
        assert_eq!(read(&[]), Variables::default());
        assert_eq!(read(&[("NCCL_BUFFSIZE", "many"), ("NCCL_CUMEM_ENABLE", "-2")]), Variables::default());
    }

    #[test]
    fn each_variable_changes_its_field() {
        let default = Variables::default;
        for (name, value, expected) in [
            ("NCCL_BUFFSIZE", "1048576", Variables { buffer_bytes: 1 << 20, ..default() }),
            ("NCCL_LL_BUFFSIZE", "4096", Variables { ll_bytes: 4096, ..default() }),
            ("NCCL_LL128_BUFFSIZE", "8192", Variables { ll128_bytes: 8192, ..default() }),
            ("NCCL_MIN_NCHANNELS", "8", Variables { min_channels: Some(8), ..default() }),
            ("NCCL_MAX_NCHANNELS", "4", Variables { max_channels: Some(4), ..default() }),
            ("NCCL_MIN_P2P_NCHANNELS", "2", Variables { min_p2p_channels: Some(2), ..default() }),
            ("NCCL_MAX_P2P_NCHANNELS", "2", Variables { max_p2p_channels: Some(2), ..default() }),
            ("NCCL_NCHANNELS_PER_NET_PEER", "4", Variables { per_net_peer: Some(4), ..default() }),
            ("NCCL_P2P_DISABLE", "1", Variables { p2p: false, ..default() }),
            ("NCCL_P2P_LEVEL", "LOC", Variables { p2p: false, ..default() }),
            ("NCCL_SHM_DISABLE", "1", Variables { shm: false, ..default() }),
            ("NCCL_CUMEM_ENABLE", "0", Variables { cumem: false, ..default() }),
            ("NCCL_RUNTIME_CONNECT", "0", Variables { runtime_connect: false, ..default() }),
            ("NCCL_NVLS_ENABLE", "0", Variables { nvls: false, ..default() }),
            ("NCCL_NVLS_NCHANNELS", "8", Variables { nvls_channels: Some(8), ..default() }),
            ("NCCL_NET_GDR_LEVEL", "0", Variables { net_gdr: false, ..default() }),
            ("NCCL_ALGO", "Tree", Variables { algorithms: Some("tree".to_owned()), ..default() }),
        ] {
            assert!(KNOWN.contains(&name), "{name}");
            assert_eq!(read(&[(name, value)]), expected, "{name}");
        }
        assert!(read(&[("NCCL_ALGO", "Tree")]).is_only("tree"));
    }
}
