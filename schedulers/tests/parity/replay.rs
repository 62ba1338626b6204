//! The crate lives through a kernel's scenario, and is asked whatever the kernel was asked.

use std::fmt::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use schedulers::{
    Balancer, Family, Flags, Flavour, Implementation, Options, Registry, Request, ServerId,
    Thresholds,
};

use crate::trace::{self, Connections, Event, Limits, Name, Pick, Scenario, Trace};

/// How the crate is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// With or without an index.
    pub(crate) implementation: Implementation,
    /// Where it knows from how many connections there are, and who has too many.
    pub(crate) counting: Counting,
}

/// Who counts connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// The trace says how many there are, and who is overloaded.
    Told,
    /// The crate is told of each connection and of thresholds, and counts by itself.
    Own,
}

impl Way {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = {
        use Counting::{Own, Told};
        use Implementation::{Indexed, Plain};
        const fn way(implementation: Implementation, counting: Counting) -> Way {
            Way {
                implementation,
                counting,
            }
        }
        [
            way(Plain, Told),
            way(Plain, Own),
            way(Indexed, Told),
            way(Indexed, Own),
        ]
    };
}

/// The crate's half of a scenario.
#[derive(Debug)]
pub(crate) struct Replay {
    /// The virtual server as the crate has it.
    pub(crate) balancer: Balancer,
    counting: Counting,
    ids: Vec<Option<ServerId>>,
}

impl Replay {
    /// Before the first event of `scenario`.
    ///
    /// # Errors
    /// The crate has no such scheduler.
    pub(crate) fn new(trace: &Trace, scenario: &Scenario, way: Way) -> Result<Self> {
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
            implementation: way.implementation,
            lblc_expiration: expiration,
            lblcr_expiration: expiration,
            ..Options::default()
        };
        let scheduler = Registry::kernel().build(&trace.scheduler, &options)?;
        Ok(Self {
            balancer: Balancer::new(scheduler, &options),
            counting: way.counting,
            ids: Vec::new(),
        })
    }

    /// Lives through `event`, which is no pick.
    ///
    /// # Errors
    /// What the kernel did is impossible to the crate.
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
                if limits != before {
                    self.balancer.set_thresholds(id, limits)?;
                }
                self.balancer.set_weight(id, weight)?;
            }
            Event::Connections(name, now) => {
                let id = self.id(name)?;
                match self.counting {
                    Counting::Told => {
                        self.balancer
                            .set_connections(id, now.active, now.inactive)?;
                    }
                    Counting::Own => self.count(id, now)?,
                }
            }
            Event::Overload(name, on) => {
                let id = self.id(name)?;
                match self.counting {
                    Counting::Told => self.balancer.set_overloaded(id, on)?,
                    Counting::Own => {
                        let server = self.balancer.servers().get(id).context("no such server")?;
                        ensure!(
                            server.is_overloaded() == on,
                            "{name} with {:?}, {} active and {} inactive connections is {}overloaded \
                             to the kernel",
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

    /// Who counts by itself has thresholds, who is told has none.
    fn thresholds(&self, limits: Limits) -> Result<Thresholds> {
        Ok(match self.counting {
            Counting::Told => Thresholds::default(),
            Counting::Own => Thresholds::new(limits.upper, limits.lower)?,
        })
    }

    /// Opens, moves and closes connections until there are as many as `now`.
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
            "a server without connections was forgotten"
        );
        Ok(())
    }

    /// The crate's answer.
    pub(crate) fn pick(&mut self, pick: &Pick) -> Option<ServerId> {
        self.balancer.pick(&Request {
            source: pick.source.ip(),
            source_port: pick.source.port(),
            destination: pick.destination.ip(),
            destination_port: pick.destination.port(),
            at: Duration::from_millis(pick.at_ms),
        })
    }

    /// The name of a server; of one that is not there, there is none.
    fn name(&self, id: ServerId) -> Option<Name> {
        let index = self.ids.iter().position(|&known| known == Some(id))?;
        u16::try_from(index).ok().map(Name)
    }

    /// The server of this name, as it was last added.
    ///
    /// # Errors
    /// It never was.
    pub(crate) fn id(&self, name: Name) -> Result<ServerId> {
        let id = self.ids.get(usize::from(name.0)).copied().flatten();
        id.with_context(|| format!("no server {name}"))
    }

    /// What to call an answer.
    fn called(&self, answer: Option<ServerId>) -> String {
        let Some(id) = answer else {
            return "nothing".into();
        };
        match self.name(id) {
            Some(name) => name.to_string(),
            None => "a stranger".into(),
        }
    }

    /// The list, a server a line.
    fn state(&self) -> String {
        let mut state = String::new();
        for (id, server) in self.balancer.servers() {
            // Writing to a string does not fail.
            let _ = writeln!(
                state,
                "  {:3} [{}]:{} weight {} (last {}) active {} inactive {}{}",
                self.called(Some(id)),
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

/// How many picks of `scenario` the crate made as the kernel did.
///
/// # Errors
/// The first one that it did not, with all there is to know about it.
pub(crate) fn compare(trace: &Trace, scenario: &Scenario, way: Way) -> Result<usize> {
    let mut replay = Replay::new(trace, scenario, way)?;
    let mut compared = 0;
    for (index, event) in scenario.events.iter().enumerate() {
        if let Event::Pick(pick, kernels) = event {
            let ours = replay.pick(pick);
            let kernels = kernels.map(|name| replay.id(name)).transpose()?;
            let difference = || Difference {
                event: index,
                pick: *pick,
                kernels: replay.called(kernels),
                ours: replay.called(ours),
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

/// So many events before a difference are shown.
const SHOWN: usize = 12;

/// A pick that the crate made otherwise than the kernel.
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
        write!(f, "the list, head first:\n{}events before:\n", self.state)?;
        for event in self.before {
            writeln!(f, "  {event:?}")?;
        }
        Ok(())
    }
}
