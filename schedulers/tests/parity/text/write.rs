//! Writes a trace as text.

use std::fmt::{self, Write as _};

use super::{Memory, next_address};
use crate::trace::{Event, Flags, Flavour, Limits, Name, Pick, Scenario, Trace};

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
        let mut run = Run::default();
        let mut events = events.iter().peekable();
        while let Some(event) = events.next() {
            if !matches!(event, Event::Pick(..)) {
                run.end(f)?;
            }
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
                    // The count of the picked connection follows its pick: one mark replaces a whole line.
                    let tail = events.peek().and_then(|next| memory.tail(*answer, next));
                    if tail.is_some() {
                        events.next();
                    }
                    let line = memory.pick_line(pick, *answer, tail)?;
                    run.add(f, line)?;
                }
            }
        }
        run.end(f)
    }
}

impl Memory {
    /// Returns the mark that replaces `next`, if `next` only counts the picked connection.
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

    fn pick_line(
        &mut self,
        pick: &Pick,
        answer: Option<Name>,
        tail: Option<char>,
    ) -> Result<String, fmt::Error> {
        let short = self.next();
        let mut line = String::from("p");
        if pick.source.ip() != short.source.ip() {
            write!(line, " s{}", pick.source.ip())?;
        }
        if pick.source.port() != short.source.port() {
            write!(line, " i{}", pick.source.port())?;
        }
        if pick.destination.ip() == next_address(short.destination.ip()) {
            line.push_str(" d+");
        } else if pick.destination.ip() != short.destination.ip() {
            write!(line, " d{}", pick.destination.ip())?;
        }
        if pick.destination.port() != short.destination.port() {
            write!(line, " j{}", pick.destination.port())?;
        }
        if pick.at_ms != short.at_ms {
            write!(line, " t{}", pick.at_ms)?;
        }
        self.pick = *pick;
        line.push(' ');
        match answer {
            None => line.push('-'),
            Some(name) => write!(line, "{name}")?,
        }
        line.extend(tail);
        Ok(line)
    }
}

/// A line and how often it repeats.
#[derive(Debug, Default)]
struct Run {
    line: String,
    times: usize,
}

impl Run {
    fn add(&mut self, f: &mut fmt::Formatter<'_>, line: String) -> fmt::Result {
        if line != self.line {
            self.end(f)?;
            self.line = line;
        }
        self.times += 1;
        Ok(())
    }

    fn end(&mut self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.times {
            0 => {}
            1 => writeln!(f, "{}", self.line)?,
            times => writeln!(f, "{} *{times}", self.line)?,
        }
        *self = Self::default();
        Ok(())
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

/// Nothing, or a space and a number for each threshold.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return Ok(());
        }
        write!(f, " {} {}", self.upper, self.lower)
    }
}
