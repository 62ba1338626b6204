//! What a kernel's scheduler did: a sequence of events and picks, in memory and as text.
//!
//! # The text
//!
//! One file per kernel and scheduler. A line is an event; fields are separated by spaces; `#` begins
//! a comment line. The first line that is none names the scheduler, the kernel and the flavour of its
//! cost formula; `scenario` begins a new virtual server, whose servers and time begin anew.
//!
//! ```text
//! trace wlc kernel 6.1.192 flavour total
//! scenario family 4 flags - expiration 86400 tcp by address
//! + a 10.0.0.1:80 3                             server a is added with weight 3
//! w a 5 8 2                                     it is written with weight 5, thresholds 8 and 2
//! - a                                           it is removed
//! c a 3 1                                       it has 3 active and 1 inactive connections
//! o a on                                        it is overloaded (or: off)
//! p s10.64.0.1 i40000 d10.96.0.1 j80 t512 a+    a new connection goes to a
//! ```
//!
//! Flags are those of `sh` and `mh`: `-`, `port`, `fallback` or `port,fallback`; the expiration, in
//! seconds, is that of `lblc` and `lblcr`. What follows it says in words what traffic there was.
//!
//! Adding or writing a server without thresholds is with none. The connections of one that is removed
//! live on; what became of them meanwhile stands before the line that adds it again. `o` lines follow
//! from thresholds and connections: they are there for who does not count.
//!
//! A pick says whence (`s` address, `i` port), whereto (`d`, `j`) and when (`t`, milliseconds since
//! the virtual server was made). What it leaves out is as in the pick before, except the source's
//! port, which is one more (from 0). Its last field is the answer: a server's name, or `-` for a
//! refused connection. What the new connection counts as comes behind the name: `+` for one more
//! active, `~` for one more inactive connection, nothing when it is over already (one-packet
//! scheduling). Everything that changed otherwise stands in a line of its own, before the pick that
//! sees it.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};

/// What one kernel's scheduler did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The kernel's name of the scheduler.
    pub(crate) scheduler: String,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// How that kernel weighs connections.
    pub(crate) flavour: Flavour,
    /// Virtual servers, each with a life of its own.
    pub(crate) scenarios: Vec<Scenario>,
}

/// The life of one virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    /// 4 or 6.
    pub(crate) family: u8,
    /// The flags of `sh` and `mh`.
    pub(crate) flags: Flags,
    /// `lblc_expiration` and `lblcr_expiration`.
    pub(crate) expiration_secs: u32,
    /// What traffic it was, in words.
    pub(crate) stimulus: String,
    /// What happened, in order.
    pub(crate) events: Vec<Event>,
}

/// How connections are weighed; both count 256 per active connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Plus all connections: since 6.1.183.
    Total,
    /// Plus the inactive ones: before.
    Classic,
}

/// The scheduler's flags of a virtual server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    /// The source's port takes part in the hash.
    pub(crate) port: bool,
    /// Another server is looked for when the hashed one is unavailable.
    pub(crate) fallback: bool,
}

/// A server within its scenario; prints as `a`, `b`, .. `z`, `aa`, ..
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name(pub(crate) u16);

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A server joins, at the head of the list.
    Add(Name, SocketAddr, u32, Limits),
    /// It leaves.
    Remove(Name),
    /// It is written again, perhaps as it is.
    Write(Name, u32, Limits),
    /// Its connections, where they changed.
    Connections(Name, Connections),
    /// Its overloaded flag, where it changed.
    Overload(Name, bool),
    /// A new connection, and where it went.
    Pick(Pick, Option<Name>),
}

/// How many connections a server may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// From this many on it is overloaded; 0 = never.
    pub(crate) upper: u32,
    /// Below this many it is so no more; 0 = three quarters of the upper one.
    pub(crate) lower: u32,
}

/// A server's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Connections {
    /// In an active state.
    pub(crate) active: u32,
    /// The others.
    pub(crate) inactive: u32,
}

/// A new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    /// The client.
    pub(crate) source: SocketAddr,
    /// The address that it asked for.
    pub(crate) destination: SocketAddr,
    /// Milliseconds since the virtual server was made; never decreases.
    pub(crate) at_ms: u64,
}

impl Scenario {
    /// How many picks it has.
    pub(crate) fn picks(&self) -> usize {
        let is_pick = |event: &&Event| matches!(event, Event::Pick(..));
        self.events.iter().filter(is_pick).count()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(before) = (self.0 / 26).checked_sub(1) {
            Self(before).fmt(f)?;
        }
        let letter = u8::try_from(self.0 % 26).map_err(|_| fmt::Error)?;
        f.write_char(char::from(b'a' + letter))
    }
}

impl FromStr for Name {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut number = 0_u16;
        for letter in text.bytes() {
            ensure!(
                letter.is_ascii_lowercase(),
                "{text:?} is not a server's name"
            );
            let digit = u16::from(letter - b'a' + 1);
            let next = number.checked_mul(26).and_then(|it| it.checked_add(digit));
            number = next.with_context(|| format!("{text:?} is too long a name"))?;
        }
        let number = number.checked_sub(1);
        Ok(Self(number.context("a server without a name")?))
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Total => "total",
            Self::Classic => "classic",
        })
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.port, self.fallback) {
            (false, false) => "-",
            (true, false) => "port",
            (false, true) => "fallback",
            (true, true) => "port,fallback",
        })
    }
}

/// The end of a line: empty, or with a space before each number.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return Ok(());
        }
        write!(f, " {} {}", self.upper, self.lower)
    }
}

/// What lines leave out: both sides of the text keep it the same way.
#[derive(Debug)]
struct Memory {
    pick: Pick,
    connections: HashMap<Name, Connections>,
}

impl Memory {
    fn new() -> Self {
        let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        Self {
            pick: Pick {
                source: nowhere,
                destination: nowhere,
                at_ms: 0,
            },
            connections: HashMap::new(),
        }
    }

    /// The pick as it is when a line leaves everything out.
    fn next(&self) -> Pick {
        let mut next = self.pick;
        next.source.set_port(next.source.port().wrapping_add(1));
        next
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scheduler,
            kernel,
            flavour,
            scenarios,
        } = self;
        writeln!(f, "trace {scheduler} kernel {kernel} flavour {flavour}")?;
        scenarios.iter().try_for_each(|scenario| scenario.fmt(f))
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            family,
            flags,
            expiration_secs,
            stimulus,
            events,
        } = self;
        writeln!(
            f,
            "scenario family {family} flags {flags} expiration {expiration_secs} {stimulus}"
        )?;
        let mut memory = Memory::new();
        let mut events = events.iter().peekable();
        while let Some(event) = events.next() {
            match event {
                Event::Add(name, address, weight, limits) => {
                    writeln!(f, "+ {name} {address} {weight}{limits}")?;
                }
                Event::Remove(name) => writeln!(f, "- {name}")?,
                Event::Write(name, weight, limits) => writeln!(f, "w {name} {weight}{limits}")?,
                Event::Connections(name, now) => {
                    memory.connections.insert(*name, *now);
                    writeln!(f, "c {name} {} {}", now.active, now.inactive)?;
                }
                Event::Overload(name, on) => {
                    writeln!(f, "o {name} {}", if *on { "on" } else { "off" })?;
                }
                Event::Pick(pick, answer) => {
                    let tail = events.peek().and_then(|next| memory.tail(*answer, next));
                    if tail.is_some() {
                        events.next();
                    }
                    memory.write_pick(f, pick, *answer, tail)?;
                }
            }
        }
        Ok(())
    }
}

impl Memory {
    /// The mark for `next` when it says no more than that the pick's connection counts.
    fn tail(&mut self, answer: Option<Name>, next: &Event) -> Option<char> {
        let name = answer?;
        let &Event::Connections(changed, now) = next else {
            return None;
        };
        let before = self.connections.get(&name).copied().unwrap_or_default();
        let tail = ['+', '~'].into_iter().find(|&mark| before.and(mark) == now);
        let tail = tail.filter(|_| changed == name)?;
        self.connections.insert(name, now);
        Some(tail)
    }

    fn write_pick(
        &mut self,
        f: &mut fmt::Formatter<'_>,
        pick: &Pick,
        answer: Option<Name>,
        tail: Option<char>,
    ) -> fmt::Result {
        let short = self.next();
        f.write_char('p')?;
        if pick.source.ip() != short.source.ip() {
            write!(f, " s{}", pick.source.ip())?;
        }
        if pick.source.port() != short.source.port() {
            write!(f, " i{}", pick.source.port())?;
        }
        if pick.destination.ip() != short.destination.ip() {
            write!(f, " d{}", pick.destination.ip())?;
        }
        if pick.destination.port() != short.destination.port() {
            write!(f, " j{}", pick.destination.port())?;
        }
        if pick.at_ms != short.at_ms {
            write!(f, " t{}", pick.at_ms)?;
        }
        self.pick = *pick;
        match (answer, tail) {
            (None, _) => writeln!(f, " -"),
            (Some(name), None) => writeln!(f, " {name}"),
            (Some(name), Some(tail)) => writeln!(f, " {name}{tail}"),
        }
    }

    fn read_pick(&mut self, fields: &[&str]) -> Result<(Event, Option<Event>)> {
        let (answer, fields) = fields.split_last().context("a pick without an answer")?;
        let mut pick = self.next();
        for field in fields {
            let (kind, value) = field.split_at_checked(1).context("an empty field")?;
            let invalid = || format!("{field:?}");
            match kind {
                "s" => pick.source.set_ip(value.parse().with_context(invalid)?),
                "i" => pick.source.set_port(value.parse().with_context(invalid)?),
                "d" => pick
                    .destination
                    .set_ip(value.parse().with_context(invalid)?),
                "j" => pick
                    .destination
                    .set_port(value.parse().with_context(invalid)?),
                "t" => pick.at_ms = value.parse().with_context(invalid)?,
                _ => bail!("a field {field:?} of a pick"),
            }
        }
        ensure!(pick.at_ms >= self.pick.at_ms, "time goes backwards");
        self.pick = pick;
        if *answer == "-" {
            return Ok((Event::Pick(pick, None), None));
        }
        let tail = answer
            .chars()
            .next_back()
            .filter(|mark| "+~".contains(*mark));
        let name: Name = answer.trim_end_matches(['+', '~']).parse()?;
        let counted = tail.map(|mark| {
            let count = self.connections.entry(name).or_default();
            *count = count.and(mark);
            Event::Connections(name, *count)
        });
        Ok((Event::Pick(pick, Some(name)), counted))
    }
}

impl Connections {
    /// One more, of the kind that a pick's mark says.
    fn and(self, mark: char) -> Self {
        let is_active = mark == '+';
        Self {
            active: self.active + u32::from(is_active),
            inactive: self.inactive + u32::from(!is_active),
        }
    }
}

impl FromStr for Trace {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut lines = text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line.split(' ').collect::<Vec<_>>()))
            .filter(|(_, fields)| !fields[0].starts_with('#'));
        let (_, header) = lines.next().context("an empty trace")?;
        let ["trace", scheduler, "kernel", kernel, "flavour", flavour] = header[..] else {
            bail!("not a trace: {header:?}");
        };
        let flavour = match flavour {
            "total" => Flavour::Total,
            "classic" => Flavour::Classic,
            _ => bail!("no flavour: {flavour:?}"),
        };
        let mut trace = Self {
            scheduler: scheduler.into(),
            kernel: kernel.into(),
            flavour,
            scenarios: Vec::new(),
        };
        let mut memory = Memory::new();
        for (number, fields) in lines {
            trace
                .read_line(&mut memory, &fields)
                .with_context(|| format!("line {number}"))?;
        }
        Ok(trace)
    }
}

impl Trace {
    fn read_line(&mut self, memory: &mut Memory, fields: &[&str]) -> Result<()> {
        if let [
            "scenario",
            "family",
            family,
            "flags",
            flags,
            "expiration",
            secs,
            stimulus @ ..,
        ] = fields
        {
            *memory = Memory::new();
            self.scenarios.push(Scenario {
                family: family.parse()?,
                flags: read_flags(flags)?,
                expiration_secs: secs.parse()?,
                stimulus: stimulus.join(" "),
                events: Vec::new(),
            });
            return Ok(());
        }
        let scenario = self.scenarios.last_mut();
        let events = &mut scenario.context("an event before any scenario")?.events;
        let event = match *fields {
            ["+", name, address, weight, ref limits @ ..] => Event::Add(
                name.parse()?,
                address.parse()?,
                weight.parse()?,
                read_limits(limits)?,
            ),
            ["-", name] => Event::Remove(name.parse()?),
            ["w", name, weight, ref limits @ ..] => {
                Event::Write(name.parse()?, weight.parse()?, read_limits(limits)?)
            }
            ["c", name, active, inactive] => {
                let now = Connections {
                    active: active.parse()?,
                    inactive: inactive.parse()?,
                };
                memory.connections.insert(name.parse()?, now);
                Event::Connections(name.parse()?, now)
            }
            ["o", name, "on"] => Event::Overload(name.parse()?, true),
            ["o", name, "off"] => Event::Overload(name.parse()?, false),
            ["p", ref fields @ ..] => {
                let (pick, counted) = memory.read_pick(fields)?;
                events.push(pick);
                events.extend(counted);
                return Ok(());
            }
            _ => bail!("{fields:?} is no event"),
        };
        events.push(event);
        Ok(())
    }
}

fn read_flags(text: &str) -> Result<Flags> {
    let mut flags = Flags::default();
    for flag in text.split(',').filter(|flag| *flag != "-") {
        match flag {
            "port" => flags.port = true,
            "fallback" => flags.fallback = true,
            _ => bail!("no flag: {flag:?}"),
        }
    }
    Ok(flags)
}

fn read_limits(fields: &[&str]) -> Result<Limits> {
    match fields {
        [] => Ok(Limits::default()),
        [upper, lower] => Ok(Limits {
            upper: upper.parse()?,
            lower: lower.parse()?,
        }),
        _ => bail!("{fields:?} are no thresholds"),
    }
}
