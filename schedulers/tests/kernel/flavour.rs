//! The load formula and threshold rule of the running kernel.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;

use crate::kernel::director::Director;
use crate::kernel::setup::{DAY_SECS, Setup, TICK_MS, Traffic};
use crate::trace::{Flags, Flavour, Limits};

/// Determines the flavour in the calling thread's network namespace, which must be new.
///
/// It is measured because distributions backport the change, so the version does not tell. A server is
/// filled up to its threshold, which is then raised by one. Older kernels clear the overload mark at
/// once; newer ones only when the server has lost a quarter of its connections. The load formula
/// changed in the same kernel versions.
pub(crate) fn probe() -> Result<Flavour> {
    const FULL: u32 = 4;
    let frontend = SocketAddr::new(Ipv4Addr::new(10, 96, 0, 1).into(), 443);
    let setup = Setup {
        scheduler: "rr".into(),
        flags: Flags::default(),
        expiration_secs: DAY_SECS,
        traffic: Traffic::Udp,
        frontend,
        by_mark: false,
        tick_ms: TICK_MS,
    };
    // The flavour given here only affects the director's own marks, not the kernel's answer.
    let mut director = Director::new(setup, Flavour::Total)?;
    let server = director.introduce(SocketAddr::new(Ipv4Addr::new(10, 16, 0, 1).into(), 8080))?;
    let limits = |upper| Limits { upper, lower: 0 };
    director.add(server, 1, limits(FULL))?;
    let ask = |director: &mut Director, port| {
        let client = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), port);
        director.pick(client, frontend)
    };
    for port in (20_000..).take(FULL as usize) {
        ask(&mut director, port)?;
    }
    director.write(server, 1, limits(FULL + 1))?;
    Ok(match ask(&mut director, 30_000)? {
        Some(_) => Flavour::Classic,
        None => Flavour::Total,
    })
}
