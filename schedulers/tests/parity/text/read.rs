//! Reads a trace from text.

use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};

use super::{Memory, next_address};
use crate::trace::{Connections, Event, Flags, Flavour, Limits, Name, Scenario, Trace};

impl FromStr for Trace {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut lines = text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line.split(' ').collect::<Vec<_>>()))
            .filter(|(_, fields)| !fields[0].starts_with('#'));
        let (_, header) = lines.next().context("the trace is empty")?;
        let ["trace", scheduler, "kernel", kernel, "flavour", flavour] = header[..] else {
            bail!("not a trace: {header:?}");
        };
        let flavour = match flavour {
            "total" => Flavour::Total,
            "classic" => Flavour::Classic,
            _ => bail!("unknown flavour {flavour:?}"),
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
        let events = &mut scenario
            .context("an event before the first scenario")?
            .events;
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
                // A trailing `*7` repeats the line; the source port still increases from pick to pick.
                let last = fields.split_last();
                let run = last.and_then(|(last, line)| Some((last.strip_prefix('*')?, line)));
                let (times, line) = match run {
                    Some((times, line)) => (times.parse()?, line),
                    None => (1_u32, fields),
                };
                for _ in 0..times {
                    let (pick, counted) = memory.read_pick(line)?;
                    events.push(pick);
                    events.extend(counted);
                }
                return Ok(());
            }
            _ => bail!("unknown event {fields:?}"),
        };
        events.push(event);
        Ok(())
    }
}

impl Memory {
    fn read_pick(&mut self, fields: &[&str]) -> Result<(Event, Option<Event>)> {
        let (answer, fields) = fields.split_last().context("a pick without a server")?;
        let mut pick = self.next();
        for field in fields {
            let (kind, value) = field.split_at_checked(1).context("an empty field")?;
            let invalid = || format!("{field:?}");
            match kind {
                "s" => pick.source.set_ip(value.parse().with_context(invalid)?),
                "i" => pick.source.set_port(value.parse().with_context(invalid)?),
                "d" if value == "+" => pick.destination.set_ip(next_address(pick.destination.ip())),
                "d" => pick
                    .destination
                    .set_ip(value.parse().with_context(invalid)?),
                "j" => pick
                    .destination
                    .set_port(value.parse().with_context(invalid)?),
                "t" => pick.at_ms = value.parse().with_context(invalid)?,
                _ => bail!("unknown field {field:?} of a pick"),
            }
        }
        ensure!(pick.at_ms >= self.pick.at_ms, "the time decreases");
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
            number = next.with_context(|| format!("the name {text:?} is too long"))?;
        }
        let number = number.checked_sub(1);
        Ok(Self(number.context("a server without a name")?))
    }
}

fn read_flags(text: &str) -> Result<Flags> {
    let mut flags = Flags::default();
    for flag in text.split(',').filter(|flag| *flag != "-") {
        match flag {
            "port" => flags.port = true,
            "fallback" => flags.fallback = true,
            _ => bail!("unknown flag {flag:?}"),
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
        _ => bail!("invalid thresholds {fields:?}"),
    }
}
