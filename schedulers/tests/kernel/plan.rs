//! The plan of a scenario.
//!
//! The traffic, the family and the flags follow from the number of the scenario, so that consecutive
//! scenarios cover all of them. The rest is random.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::kernel::random::Random;
use crate::kernel::setup::{DAY_SECS, Setup, TICK_MS, Traffic};
use crate::trace::Flags;

/// `lblcr_expiration` if it matters: more than the actions between two pauses take, and less than a
/// pause.
const EXPIRATION_SECS: u32 = 3;

/// Expirations for scenarios with idle times. `lblc` and `lblcr` look for addresses unused for this
/// long every half hour.
const AGES_SECS: [u32; 3] = [400, 1200, 2000];

/// The plan of one scenario.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) setup: Setup,
    pub(crate) weights: Weights,
    /// The number of servers at the start, and at most.
    pub(crate) servers: usize,
    pub(crate) pool: usize,
    pub(crate) has_limits: bool,
    /// Whether the first server gets about 256 inactive connections, which weigh as much as an active
    /// one.
    pub(crate) has_inactive_load: bool,
    pub(crate) extent: Extent,
    pub(crate) random: Random,
}

/// The greatest extent of a scenario.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// The number of new connections.
    pub(crate) picks: usize,
    /// How often connections are left to expire, which takes a second each.
    pub(crate) expiries: u32,
    /// How often to wait three seconds until `lblcr` may shrink its sets.
    pub(crate) pauses: u32,
    /// Idle times in seconds. They split the scenario into equal parts, one more than idle times, and
    /// give `lblc` and `lblcr` time to forget addresses.
    pub(crate) idle_secs: &'static [u64],
}

/// The weights of the servers, apart from an occasional 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    /// 1.
    Equal,
    /// 1 to 4.
    Few,
    /// 1 to 100.
    Spread,
    /// 6 to 60 in steps of 6, so that they have a common divisor.
    Steps,
    /// Numbers of any length in bits.
    Wide,
}

impl Plan {
    /// Draws the plan of scenario `number` of `scheduler`.
    pub(crate) fn draw(scheduler: &str, number: u32, mut extent: Extent, seed: u64) -> Self {
        let stream = scheduler.bytes().fold(u64::from(number), |sum, byte| {
            sum.wrapping_mul(257).wrapping_add(byte.into())
        });
        let mut random = Random::new(seed, stream);
        let is_hash = ["sh", "mh"].contains(&scheduler);
        let by_locality = ["dh", "lblc", "lblcr"].contains(&scheduler);
        let counts_active = ["sed", "nq", "ovf", "lblc", "lblcr"].contains(&scheduler);
        let family_v4 = number.is_multiple_of(2);
        let frontend: IpAddr = match family_v4 {
            true => Ipv4Addr::new(10, 96, 0, 1).into(),
            false => Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 1).into(),
        };
        let traffic = match number / 2 % 4 {
            0 | 2 => Traffic::Tcp,
            1 if counts_active => Traffic::Tcp,
            1 => Traffic::Udp,
            _ if is_hash || number % 16 > 7 => Traffic::OnePacket,
            _ => Traffic::Udp,
        };
        let weights = [
            Weights::Equal,
            Weights::Few,
            Weights::Spread,
            Weights::Steps,
            Weights::Wide,
        ];
        let weights = match scheduler {
            // These compare the active connections with the weight, so weights must be low.
            "lblc" | "lblcr" | "ovf" if !random.chance(20) => {
                *random.choose(&[Weights::Equal, Weights::Few])
            }
            _ => *random.choose(&weights),
        };
        let weighs_inactive = ["lc", "wlc", "lblc", "lblcr", "twos"].contains(&scheduler);
        let has_inactive_load = weighs_inactive && matches!(number % 8, 0 | 1);
        if traffic == Traffic::OnePacket {
            extent.expiries = 0;
        }
        let expiration_secs = if !extent.idle_secs.is_empty() {
            *random.choose(&AGES_SECS)
        } else if scheduler == "lblcr" {
            EXPIRATION_SECS
        } else {
            DAY_SECS
        };
        if expiration_secs == EXPIRATION_SECS {
            // What happens between two pauses must take less time than a pause.
            extent.expiries = extent.expiries.min(1);
        } else {
            extent.pauses = 0;
        }
        let servers = *random.choose(&[1, 2, 3, 3, 4, 5, 6, 8, 12, 24]);
        Self {
            setup: Setup {
                scheduler: scheduler.into(),
                flags: Flags {
                    port: is_hash && number & 8 != 0,
                    fallback: is_hash && number & 16 != 0,
                },
                expiration_secs,
                traffic,
                frontend: SocketAddr::new(frontend, 443),
                tick_ms: TICK_MS,
                by_mark: by_locality && (!random.chance(15) || !extent.idle_secs.is_empty()),
            },
            weights,
            servers,
            pool: servers + servers / 2 + 2,
            has_limits: !has_inactive_load && random.chance(50),
            has_inactive_load,
            extent,
            random,
        }
    }
}
