//! Settings from flags: texts in the syntax of Go's packages `flag` and `pflag`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{BOOLEAN, DURATION, INTEGER, LEVEL, SIZE, Slot};
use crate::cli::config::go::{self, GoDuration, Quantity};
use crate::cli::config::{FilePattern, FlushFrequency};

/// Why a value is invalid. The text follows the name of the setting.
type Reason = String;

impl Slot<'_> {
    /// Sets the value of a flag. Lists, gates and patterns are extended.
    pub(crate) fn parse(self, text: &str) -> Result<(), Reason> {
        let not = |what: &str| format!("invalid value {text:?}: must be {what}");
        let boolean = || go::boolean(text).ok_or_else(|| not(BOOLEAN));
        let integer = || go::integer(text).ok_or_else(|| not(INTEGER));
        let duration = || GoDuration::parse(text).ok_or_else(|| not(DURATION));
        match self {
            Self::Bool(place) => *place = boolean()?,
            Self::OptionalBool(place) => *place = Some(boolean()?),
            Self::Integer(place) => *place = integer()?,
            Self::OptionalInteger(place) => *place = Some(integer()?),
            Self::Float(place) => *place = text.parse().map_err(|_| not("a number"))?,
            Self::Text(place) => text.clone_into(place),
            // As in kube-proxy, an empty address keeps the default.
            Self::Address(_) | Self::AddressPort(_) if text.is_empty() => {}
            Self::Address(place) => {
                let address: Result<IpAddr, _> = text.trim().parse();
                let address = address.map_err(|_| not("an IP address, without a port"))?;
                *place = address.to_string();
            }
            Self::AddressPort(place) if is_address_port(text) => text.clone_into(place),
            Self::AddressPort(_) => {
                return Err(not("IP or IP:port, such as 0.0.0.0:10256 or [::]:10256"));
            }
            Self::Commas(place) => *place = text.split(',').map(str::to_owned).collect(),
            Self::Duration(place) => *place = duration()?,
            Self::OptionalDuration(place) => *place = Some(duration()?),
            Self::Flush(place) => {
                *place = FlushFrequency {
                    duration: duration()?,
                    is_number: false,
                }
            }
            Self::Words(place) => {
                let words = go::words(text);
                let words = words.ok_or_else(|| not("a list of words, separated by commas"))?;
                place.get_or_insert_default().extend(words);
            }
            Self::Gates(place) => place.extend(gates(text)?),
            Self::Level(place) => *place = go::level(text).ok_or_else(|| not(LEVEL))?,
            Self::Patterns(place) => place.extend(patterns(text)?),
            Self::Size(place) => *place = Quantity::parse(text).ok_or_else(|| not(SIZE))?,
        }
        Ok(())
    }
}

/// Returns whether kube-proxy's flag type `ipport` accepts the text.
fn is_address_port(text: &str) -> bool {
    if text.parse::<IpAddr>().is_ok() {
        return true;
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = match bracketed {
        Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
        None => host.parse::<Ipv4Addr>().is_ok(),
    };
    is_host && go::level(port).is_some_and(|port| port <= 65_535)
}

/// Parses `A=true,B=false`.
fn gates(text: &str) -> Result<BTreeMap<String, bool>, Reason> {
    let mut gates = BTreeMap::new();
    for pair in text
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
    {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(format!(
                "invalid value {pair:?}: must be NAME=true or NAME=false"
            ));
        };
        let (name, value) = (name.trim(), value.trim());
        let value = go::boolean(value)
            .ok_or_else(|| format!("invalid value {value:?} of {name}: must be {BOOLEAN}"))?;
        gates.insert(name.to_owned(), value);
    }
    Ok(gates)
}

/// Parses `server=2,client*=4`.
fn patterns(text: &str) -> Result<Vec<FilePattern>, Reason> {
    let parse = |pair: &str| {
        let (pattern, level) = pair.split_once('=')?;
        let verbosity = go::level(level)?;
        let pattern = (!pattern.is_empty()).then(|| pattern.to_owned())?;
        Some(FilePattern { pattern, verbosity })
    };
    text.split(',')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            parse(pair).ok_or_else(|| format!("invalid value {pair:?}: must be PATTERN=NUMBER"))
        })
        .collect()
}
