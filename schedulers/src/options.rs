//! What differs between kernels, virtual servers and installations.

use std::time::Duration;

/// How a scheduler is built; the default is a Debian kernel of late 2026 and an IPv4 virtual server
/// without flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The address family of the virtual server: how addresses are hashed.
    pub family: Family,
    /// Which kernels' load formula and threshold rule to follow.
    pub flavour: Flavour,
    /// The virtual server's scheduler flags.
    pub flags: Flags,
    /// Whether to scan as the kernel does or to keep an index; the picks are the same.
    pub implementation: Implementation,
    /// Where schedulers that draw lots start their random sequence.
    pub seed: u64,
    /// Size of sh's table.
    pub sh_table: ShTable,
    /// Size of mh's table.
    pub mh_table: MhTable,
    /// How long lblc remembers an address that nobody asks for (`lblc_expiration`).
    pub lblc_expiration: Duration,
    /// How long lblcr remembers an address that nobody asks for, and how long a set of servers
    /// stays as it is before its most loaded member leaves (`lblcr_expiration`).
    pub lblcr_expiration: Duration,
    /// How many addresses lblc and lblcr remember.
    pub locality_limit: LocalityLimit,
}

impl Default for Options {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        Self {
            family: Family::V4,
            flavour: Flavour::Total,
            flags: Flags::default(),
            implementation: Implementation::default(),
            seed: 0,
            sh_table: ShTable::default(),
            mh_table: MhTable::default(),
            lblc_expiration: DAY,
            lblcr_expiration: DAY,
            locality_limit: LocalityLimit::default(),
        }
    }
}

/// The address family of a virtual server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

/// Which kernels' connection counting to follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flavour {
    /// Kernels before 6.1.183 of the 6.1 series, 6.12 as released: the load is 256 per active
    /// connection plus one per inactive one, and thresholds are compared after the fact.
    Classic,
    /// 6.1.183 and later, 7.2: the load is 256 per active connection plus one per connection, and
    /// thresholds have a hysteresis.
    #[default]
    Total,
}

/// How many addresses lblc and lblcr remember.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalityLimit {
    /// 6.1.191 and later of the 6.1 series: 24576.
    #[default]
    Bounded,
    /// Earlier kernels: as many as are dialled. lblc also counts an address again whenever its
    /// server changes, which lets it forget early what it would otherwise keep.
    Unbounded,
}

/// Flags of a virtual server that its scheduler reads (`ipvsadm --sched-flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// sh, mh: when the chosen server is not eligible, probe on instead of refusing
    /// (`flag-1`, `sh-fallback`, `mh-fallback`; `IP_VS_SVC_F_SCHED1`).
    pub fallback: bool,
    /// sh, mh: hash the client's port besides its address
    /// (`flag-2`, `sh-port`, `mh-port`; `IP_VS_SVC_F_SCHED2`).
    pub port: bool,
}

/// How a scheduler finds the server that its formula names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Implementation {
    /// Reads every server, in the kernel's order.
    Plain,
    /// Keeps an index over the servers, where there is one: lc, wlc, sed, nq, wrr. `tests/equal.rs`
    /// holds it against the plain one.
    #[default]
    Indexed,
}

/// The number of slots of sh's table: a power of two (`CONFIG_IP_VS_SH_TAB_BITS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShTable {
    bits: u32,
}

impl ShTable {
    /// 2 to the power of `bits` slots; the kernel allows 4 to 20, others are `None`.
    pub fn from_bits(bits: u32) -> Option<Self> {
        (4..=20).contains(&bits).then_some(Self { bits })
    }

    /// The binary logarithm of the number of slots.
    pub fn bits(self) -> u32 {
        self.bits
    }

    /// The number of slots.
    pub fn slots(self) -> usize {
        1 << self.bits
    }
}

impl Default for ShTable {
    fn default() -> Self {
        Self { bits: 8 }
    }
}

/// The number of slots of mh's table: a prime (`CONFIG_IP_VS_MH_TAB_INDEX`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MhTable {
    index: u32,
}

impl MhTable {
    /// The greatest prime below 2 to the power of `index`; the kernel allows 8 to 17, others are
    /// `None`.
    pub fn from_index(index: u32) -> Option<Self> {
        (8..=17).contains(&index).then_some(Self { index })
    }

    /// The kernel's configuration value.
    pub fn index(self) -> u32 {
        self.index
    }

    /// The number of slots.
    pub fn slots(self) -> u32 {
        match self.index {
            8 => 251,
            9 => 509,
            10 => 1021,
            11 => 2039,
            12 => 4093,
            13 => 8191,
            14 => 16_381,
            15 => 32_749,
            16 => 65_521,
            _ => 131_071,
        }
    }
}

impl Default for MhTable {
    fn default() -> Self {
        Self { index: 12 }
    }
}
