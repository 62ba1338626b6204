//! Replays a kernel's scenario with the crate and compares the picks.

use std::fmt::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use schedulers::{
    Balancer, Family, Flags, Flavour, Implementation, Options, Registry, Request, ServerId,
    Thresholds,
};

use crate::trace::{self, Connections, Event, Limits, Name, Pick, Scenario, Trace};

/// How the crate is run in a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    /// With an index or without.
    pub(crate) implementation: Implementation,
    /// The source of the counts and overload marks.
    pub(crate) counting: Counting,
}

/// The source of connection counts and overload marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// From the trace.
    FromTrace,
    /// From the crate: the replay opens and closes each connection and sets the thresholds.
    ByCrate,
}

impl Mode {
    /// All combinations.
    pub(crate) const ALL: [Self; 4] = {
        use Counting::{ByCrate, FromTrace};
        use Implementation::{Indexed, Plain};
        const fn mode(implementation: Implementation, counting: Counting) -> Mode {
            Mode {
                implementation,
                counting,
            }
        }
        [
            mode(Plain, FromTrace),
            mode(Plain, ByCrate),
            mode(Indexed, FromTrace),
            mode(Indexed, ByCrate),
        ]
    };
}

/// A scenario in replay.
#[derive(Debug)]
pub(crate) struct Replay {
    /// The crate's virtual server.
    pub(crate) balancer: Balancer,
    counting: Counting,
    ids: Vec<Option<ServerId>>,
}

impl Replay {
    /// Starts before the first event of `scenario`.
    ///
    /// # Errors
    /// The crate does not have the scheduler.
    pub(crate) fn new(trace: &Trace, scenario: &Scenario, mode: Mode) -> Result<Self> {
        let expiration = Duration::from_secs(scenario.expiration_secs.into());
        let options = Options {
            family: if scenario.family == 4 {
                Family::V4
            } else {
                Family::V6
            },
            flavour: match trace.flavour {
                trace::Flavour::Total => Flavour::Total,
                trace::Flavour::Classic => Flavour::Classic,
            },
            flags: Flags {
                fallback: scenario.flags.fallback,
                port: scenario.flags.port,
            },
            implementation: mode.implementation,
            lblc_expiration: expiration,
            lblcr_expiration: expiration,
            ..Options::default()
        };
        let scheduler = Registry::kernel().build(&trace.scheduler, &options)?;
        Ok(Self {
            balancer: Balancer::new(scheduler, &options),
            counting: mode.counting,
            ids: Vec::new(),
        })
    }

    /// Applies `event`, unless it is a pick.
    ///
    /// # Errors
    /// The crate rejects what the kernel did.
    pub(crate) fn apply(&mut self, event: &Event) -> Result<()> {
        match *event {
            Event::Add(name, address, weight, limits) => {
                let id = self
                    .balancer
                    .add_limited(address, weight, self.thresholds(limits)?)?;
                let index = usize::from(name.0);
                if self.ids.len() <= index {
                    self.ids.resize(index + 1, None);
                }
                self.ids[index] = Some(id);
            }
            Event::Remove(name) => self.balancer.remove(self.id(name)?)?,
            Event::Write(name, weight, limits) => {
                let id = self.id(name)?;
                let server = self.balancer.servers().get(id).context("no such server")?;
                let (before, limits) = (server.thresholds(), self.thresholds(limits)?);
                // The kernel sets both by one command; equal thresholds must not notify the scheduler twice.
                if limits != before {
                    self.balancer.set_thresholds(id, limits)?;
                }
                self.balancer.set_weight(id, weight)?;
            }
            Event::Connections(name, now) => {
                let id = self.id(name)?;
                match self.counting {
                    Counting::FromTrace => {
                        self.balancer
                            .set_connections(id, now.active, now.inactive)?;
                    }
                    Counting::ByCrate => self.count(id, now)?,
                }
            }
            Event::Overload(name, on) => {
                let id = self.id(name)?;
                match self.counting {
                    Counting::FromTrace => self.balancer.set_overloaded(id, on)?,
                    Counting::ByCrate => {
                        let server = self.balancer.servers().get(id).context("no such server")?;
                        ensure!(
                            server.is_overloaded() == on,
                            "{name} with {:?}, {} active and {} inactive connections is {}overloaded \
                             in the kernel",
                            server.thresholds(),
                            server.active(),
                            server.inactive(),
                            if on { "" } else { "not " }
                        );
                    }
                }
            }
            Event::Pick(..) => {}
        }
        Ok(())
    }

    /// The thresholds to set: none if the overload marks come from the trace.
    fn thresholds(&self, limits: Limits) -> Result<Thresholds> {
        Ok(match self.counting {
            Counting::FromTrace => Thresholds::default(),
            Counting::ByCrate => Thresholds::new(limits.upper, limits.lower)?,
        })
    }

    /// Opens, moves and closes connections until the counts are `now`.
    fn count(&mut self, id: ServerId, now: Connections) -> Result<()> {
        let balancer = &mut self.balancer;
        while let Some(server) = balancer.servers().get(id) {
            let (active, inactive) = (server.active(), server.inactive());
            let (before, after) = (active + inactive, now.active + now.inactive);
            if before == after && active == now.active {
                return Ok(());
            }
            if before == after {
                match active > now.active {
                    true => balancer.deactivated(id)?,
                    false => balancer.activated(id)?,
                }
            } else if before < after {
                match active < now.active {
                    true => balancer.connected(id)?,
                    false => balancer.opened(id)?,
                }
            } else {
                match active > now.active {
                    true => balancer.disconnected(id)?,
                    false => balancer.closed(id)?,
                }
            }
        }
        ensure!(
            now == Connections::default(),
            "the crate forgot a server that has connections in the kernel"
        );
        Ok(())
    }

    /// Returns the crate's pick.
    pub(crate) fn pick(&mut self, pick: &Pick) -> Option<ServerId> {
        self.balancer.pick(&Request {
            source: pick.source.ip(),
            source_port: pick.source.port(),
            destination: pick.destination.ip(),
            destination_port: pick.destination.port(),
            at: Duration::from_millis(pick.at_ms),
        })
    }

    /// Returns the name of a server, if it has one.
    fn name(&self, id: ServerId) -> Option<Name> {
        let index = self.ids.iter().position(|&known| known == Some(id))?;
        u16::try_from(index).ok().map(Name)
    }

    /// Returns the server that was last added under this name.
    ///
    /// # Errors
    /// No server was.
    pub(crate) fn id(&self, name: Name) -> Result<ServerId> {
        let id = self.ids.get(usize::from(name.0)).copied().flatten();
        id.with_context(|| format!("no server {name}"))
    }

    /// Returns the text for a pick.
    fn label(&self, answer: Option<ServerId>) -> String {
        let Some(id) = answer else {
            return "nothing".into();
        };
        match self.name(id) {
            Some(name) => name.to_string(),
            None => "an unknown server".into(),
        }
    }

    /// Returns the list, one server per line.
    fn state(&self) -> String {
        let mut state = String::new();
        for (id, server) in self.balancer.servers() {
            // Writing to a string cannot fail.
            let _ = writeln!(
                state,
                "  {:3} [{}]:{} weight {} (last {}) active {} inactive {}{}",
                self.label(Some(id)),
                server.address(),
                server.port(),
                server.weight(),
                server.last_weight(),
                server.active(),
                server.inactive(),
                if server.is_overloaded() {
                    " overloaded"
                } else {
                    ""
                }
            );
        }
        state
    }
}

/// Compares all picks of `scenario` with the kernel's and returns their number.
///
/// # Errors
/// The first different pick, with the state of the servers and the events before it.
pub(crate) fn compare(trace: &Trace, scenario: &Scenario, mode: Mode) -> Result<usize> {
    let mut replay = Replay::new(trace, scenario, mode)?;
    let mut compared = 0;
    for (index, event) in scenario.events.iter().enumerate() {
        if let Event::Pick(pick, kernels) = event {
            let ours = replay.pick(pick);
            let kernels = kernels.map(|name| replay.id(name)).transpose()?;
            let difference = || Difference {
                event: index,
                pick: *pick,
                kernels: replay.label(kernels),
                ours: replay.label(ours),
                state: replay.state(),
                before: &scenario.events[index.saturating_sub(SHOWN)..index],
            };
            ensure!(ours == kernels, "{}", difference());
            compared += 1;
        } else {
            let applied = replay.apply(event);
            applied.with_context(|| format!("event {index}, {event:?}\n{}", replay.state()))?;
        }
    }
    Ok(compared)
}

/// How many events before a difference are shown.
const SHOWN: usize = 12;

/// A pick in which the crate differs from the kernel.
struct Difference<'a> {
    event: usize,
    pick: Pick,
    kernels: String,
    ours: String,
    state: String,
    before: &'a [Event],
}

impl fmt::Display for Difference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "event {}: the kernel picked {}, the crate {}, for {} to {} at {} ms",
            self.event,
            self.kernels,
            self.ours,
            self.pick.source,
            self.pick.destination,
            self.pick.at_ms
        )?;
        write!(f, "servers, newest first:\n{}events before:\n", self.state)?;
        for event in self.before {
            writeln!(f, "  {event:?}")?;
        }
        Ok(())
    }
}
