//! The differences between kernels, virtual servers and kernel configurations.

use std::time::Duration;

/// How to build a scheduler.
///
/// The default is a Debian kernel of late 2026 and an IPv4 virtual server without flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The address family of the virtual server; it decides how addresses are hashed.
    pub family: Family,
    /// The kernels whose load formula and threshold rule to follow.
    pub flavour: Flavour,
    /// The virtual server's scheduler flags.
    pub flags: Flags,
    /// Whether to scan as the kernel does or to keep an index. The picks are the same.
    pub implementation: Implementation,
    /// The seed of schedulers that draw random numbers.
    pub seed: u64,
    /// Size of the table of sh.
    pub sh_table: ShTable,
    /// Size of the table of mh.
    pub mh_table: MhTable,
    /// How long lblc remembers an unused address (sysctl `lblc_expiration`).
    pub lblc_expiration: Duration,
    /// How long lblcr remembers an unused address, and how long an address keeps the same set of
    /// servers before the most loaded one is dropped (sysctl `lblcr_expiration`).
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

/// The kernels whose load formula and threshold rule are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flavour {
    /// Before 6.1.183 of the 6.1 series; 6.12 as released. The load is 256 per active connection
    /// plus 1 per inactive one, and every connection is compared with the thresholds.
    Classic,
    /// 6.1.183 and later; 7.2. The load is 256 per active connection plus 1 per connection, and the
    /// overload mark changes only when the count crosses a threshold (hysteresis).
    #[default]
    Total,
}

/// How many addresses lblc and lblcr remember.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalityLimit {
    /// 6.1.191 and later of the 6.1 series: 24576.
    #[default]
    Bounded,
    /// Earlier kernels: no limit. Their lblc also counts an address again whenever its server changes.
    /// The count is then too high, and lblc forgets entries too early.
    Unbounded,
}

/// Flags of a virtual server that its scheduler reads (`ipvsadm --sched-flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// sh, mh: if the chosen server is not eligible, try other slots instead of refusing the
    /// connection (`flag-1`, `sh-fallback`, `mh-fallback`; `IP_VS_SVC_F_SCHED1`).
    pub fallback: bool,
    /// sh, mh: hash the client's port in addition to its address
    /// (`flag-2`, `sh-port`, `mh-port`; `IP_VS_SVC_F_SCHED2`).
    pub port: bool,
}

/// How a scheduler finds the server that its formula selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Implementation {
    /// Reads every server in the kernel's order.
    Plain,
    /// Keeps an index over the servers if the scheduler has one: lc, wlc, sed, nq, wrr. The test
    /// `tests/equal.rs` proves that the picks are the same.
    #[default]
    Indexed,
}

/// The number of slots of the table of sh: a power of two (`CONFIG_IP_VS_SH_TAB_BITS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShTable {
    bits: u32,
}

impl ShTable {
    /// Returns a table of 2<sup>`bits`</sup> slots.
    ///
    /// The kernel allows 4 to 20; other values return `None`.
    pub fn from_bits(bits: u32) -> Option<Self> {
        (4..=20).contains(&bits).then_some(Self { bits })
    }

    /// Returns the binary logarithm of the number of slots.
    pub fn bits(self) -> u32 {
        self.bits
    }

    /// Returns the number of slots.
    pub fn slots(self) -> usize {
        1 << self.bits
    }
}

impl Default for ShTable {
    fn default() -> Self {
        Self { bits: 8 }
    }
}

/// The number of slots of the table of mh: a prime (`CONFIG_IP_VS_MH_TAB_INDEX`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MhTable {
    index: u32,
}

impl MhTable {
    /// Returns a table whose size is the greatest prime below 2<sup>`index`</sup>.
    ///
    /// The kernel allows 8 to 17; other values return `None`.
    pub fn from_index(index: u32) -> Option<Self> {
        (8..=17).contains(&index).then_some(Self { index })
    }

    /// Returns the kernel's configuration value.
    pub fn index(self) -> u32 {
        self.index
    }

    /// Returns the number of slots.
    pub fn slots(self) -> u32 {
        match self.index {
            // `primes` of `ip_vs_mh.c`: each is the greatest prime below a power of two.
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
