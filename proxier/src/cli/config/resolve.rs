//! Flags and file become one configuration.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::fields::{FIELDS, Field};
use super::file::{self, ReadFile};
use super::flags::{FlagValues, Target};
use super::origin::{InvalidSetting, Origin, Origins, SettingErrors};
use super::settings::NodeSettings;
use super::values::{Values, to_yaml};
use super::{Effect, gates};
use crate::sources::watch::Encoding;

/// A valid configuration, and where it came from.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    /// The fields of the configuration.
    pub(super) values: Values,
    /// The settings that only flags have.
    pub(crate) command: Values,
    /// The place that sets each setting.
    pub(super) origins: Origins,
    /// Lines for the operator: settings without an effect, and why.
    pub(crate) notices: Vec<String>,
}

/// Combines flags with the configuration file that `--config` names, and validates the result.
///
/// # Errors
/// If the file is unreadable or a setting is invalid. The error names every invalid setting, with
/// the flag, or the file and its line.
pub(crate) fn resolve(
    flags: &FlagValues,
    file: Option<(&Path, &str)>,
) -> Result<(Resolved, NodeSettings), SettingErrors> {
    let mut resolved = match file {
        Some((path, text)) => Resolved::of_file(flags, file::read(path, text)?),
        None => Resolved::of_flags(flags),
    };
    resolved.override_hostname(flags)?;
    let Resolved { values, .. } = &mut resolved;
    for path in ["mode", "detectLocalMode"] {
        if values.text(path).is_empty() {
            values.take(path);
        }
    }
    if values.text("mode") == "nftables" && values.get("nodePortAddresses").is_null() {
        values.set("nodePortAddresses", vec!["primary"]);
    }
    let notices = resolved.notices_of_mode();
    resolved.notices.extend(notices);
    let settings = resolved.settings()?;
    Ok((resolved, settings))
}

/// The field that an empty flag does not replace.
const HOSTNAME: &str = "hostnameOverride";

/// The sections that a mode selects, by its name.
const MODES: [&str; 3] = ["iptables", "ipvs", "nftables"];

/// The names of their periods.
const PERIODS: [&str; 2] = ["syncPeriod", "minSyncPeriod"];

/// The default ports of the servers.
const SERVERS: [(&str, &str, u16); 2] = [
    ("healthzBindAddress", "healthz-port", 10_256),
    ("metricsBindAddress", "metrics-port", 10_249),
];

impl Resolved {
    fn of_flags(flags: &FlagValues) -> Self {
        let mut values = Values::default();
        let mut origins = Origins::default();
        // A file without this field means 0.
        values.set("ipvs.minSyncPeriod", "1s");
        for (flag, value) in &flags.given {
            if let Target::Field(path) = flag.target {
                values.extend(path, value.clone());
                origins.insert(path, Origin::Flag(flag.name));
            }
        }
        // The nftables mode has no flags of its own.
        for (path, source) in [
            ("nftables.syncPeriod", "iptables.syncPeriod"),
            ("nftables.minSyncPeriod", "iptables.minSyncPeriod"),
            ("nftables.masqueradeAll", "iptables.masqueradeAll"),
        ] {
            let value = values.get(source);
            values.set(path, value);
        }
        // As kube-proxy's `Complete`: a file that it writes has the addresses as they were given.
        if flags.command.text("write-config-to").is_empty() {
            for (path, flag, default) in SERVERS {
                let port = flags.command.integer(flag);
                let address = match port {
                    Some(0) => String::new(),
                    port => {
                        let port = port.and_then(|port| u16::try_from(port).ok());
                        with_port(values.text(path), port.unwrap_or(default))
                    }
                };
                values.set(path, address);
            }
        }
        let mut resolved = Self {
            values,
            command: flags.command.clone(),
            origins,
            notices: Vec::new(),
        };
        resolved.notice_flags(flags);
        resolved
    }

    fn of_file(flags: &FlagValues, file: ReadFile) -> Self {
        let ReadFile {
            mut values,
            mut origins,
            mut notices,
            ..
        } = file;
        if values.text("bindAddress").contains(':') {
            for (path, host) in [("healthzBindAddress", "::"), ("metricsBindAddress", "::1")] {
                let address = values.take(path).unwrap_or_else(|| host.into());
                values.set(path, address);
            }
        }
        for (path, _, port) in SERVERS {
            let address = with_port(values.text(path), port);
            values.set(path, address);
        }
        notices.extend(without_effect(&values, &origins));
        // kube-proxy 1.36.2 overwrites these two with their flags, even if those are not given.
        values.take("logging.options.json.splitStream");
        values.take("logging.options.text.splitStream");
        let patterns = values.take("logging.vmodule");
        for (flag, value) in &flags.given {
            if let Target::Field(path) = flag.target
                && flags.counts_with_file(flag)
                && path != HOSTNAME
            {
                values.extend(path, value.clone());
                origins.insert(path, Origin::Flag(flag.name));
            }
        }
        // The first matching pattern wins, and flags win over the file.
        values.extend("logging.vmodule", patterns.unwrap_or_default());
        let mut resolved = Self {
            values,
            command: flags.command.clone(),
            origins,
            notices,
        };
        resolved.notice_flags(flags);
        resolved
    }

    /// Adds lines about the flags that have no effect.
    fn notice_flags(&mut self, flags: &FlagValues) {
        let mut replaced = Vec::new();
        let mut names = BTreeSet::new();
        for (flag, _) in &flags.given {
            let name = format!("--{}", flag.name);
            if !names.insert(flag.name) {
                continue;
            }
            if self.origins.file.is_some() && !flags.counts_with_file(flag) {
                replaced.push(name);
            } else if let Effect::Nothing(why) = flag.effect() {
                self.notices
                    .push(format!("{name} has no effect here: {why}"));
            }
        }
        if !replaced.is_empty() {
            self.notices.push(format!(
                "{} replaces all flags that have a field in it, so these flags are ignored: {}",
                self.origins.place(None, ""),
                replaced.join(", ")
            ));
        }
    }

    /// Trims the host name of the flag and converts it to lower case.
    fn override_hostname(&mut self, flags: &FlagValues) -> Result<(), SettingErrors> {
        let given = flags.given.iter().rev();
        let mut given = given.filter(|(flag, value)| flag.path() == Some(HOSTNAME) && value != "");
        let Some((flag, text)) = given.next() else {
            return Ok(());
        };
        let name = text.as_str().unwrap_or_default().trim().to_lowercase();
        self.origins.insert(HOSTNAME, Origin::Flag(flag.name));
        if name.is_empty() {
            let invalid = InvalidSetting::value(HOSTNAME, text, "must not be blank");
            return SettingErrors::check(&[invalid], &self.origins);
        }
        self.values.set(HOSTNAME, name);
        Ok(())
    }

    /// Returns lines about settings that another mode of kube-proxy would use, about feature gates, and
    /// about unknown content types.
    fn notices_of_mode(&self) -> Vec<String> {
        let mut notices = Vec::new();
        let mode = self.values.text("mode");
        let section = self.section();
        let name = |path: &str| self.origins.name(path);
        if self.origins.is_set("mode") && section == "iptables" {
            notices.push(format!(
                "{}: this program programs IPVS; mode {mode:?} only decides that {section} has the sync periods",
                name("mode")
            ));
        }
        let periods = FIELDS.iter().filter(|field| is_period(field.path));
        for field in periods {
            let path = field.path;
            let is_used = PERIODS.iter().any(|name| self.period_path(name) == path);
            let counts = is_used || path.starts_with(section);
            if self.origins.is_set(path) && !counts && self.values.differs(field) {
                notices.push(format!(
                    "{} has no effect here: the mode makes {section} the section with the sync periods",
                    name(path)
                ));
            }
        }
        let gates = gates::without_effect(&self.values);
        if !gates.is_empty() {
            notices.push(format!(
                "{}: these feature gates have no effect here: {}",
                name("featureGates"),
                gates.join(", ")
            ));
        }
        let (path, types) = self.accepted_types();
        if !types.is_empty() && Encoding::of_media_types(&types).is_none() {
            notices.push(format!(
                "{}: {types:?} names neither JSON nor protobuf; JSON is used",
                name(path)
            ));
        }
        notices
    }

    /// Returns the field that names the media types that responses may have, and its value. As in client-go, the
    /// type of requests counts if no list is given.
    pub(super) fn accepted_types(&self) -> (&'static str, String) {
        let path = "clientConnection.acceptContentTypes";
        match self.values.text(path) {
            list if !list.is_empty() => (path, list),
            _ => {
                let path = "clientConnection.contentType";
                (path, self.values.text(path))
            }
        }
    }

    /// Returns the name of the section with the sync periods, which the mode selects.
    pub(super) fn section(&self) -> &'static str {
        let mode = self.values.text("mode");
        let section = MODES.into_iter().find(|section| *section == mode);
        section.unwrap_or("iptables")
    }

    /// Returns the path of a period of this program, by its name.
    ///
    /// The flags `--ipvs-sync-period` and `--ipvs-min-sync-period` count in every mode.
    pub(super) fn period_path(&self, name: &str) -> String {
        let path = format!("ipvs.{name}");
        match self.origins.file.is_none() && self.origins.is_set(&path) {
            true => path,
            false => format!("{}.{name}", self.section()),
        }
    }

    /// Returns the configuration file's path, from `--config`.
    pub(crate) fn file(&self) -> Option<&PathBuf> {
        self.origins.file.as_ref()
    }

    /// Returns the content of the configuration as kube-proxy has it, for `/configz`.
    pub(crate) fn to_json(&self) -> Value {
        let mut values = self.values.clone();
        let section = self.section();
        // kube-proxy's conversion keeps only what the mode uses, and drops `portRange`.
        for field in FIELDS.iter().filter(|field| is_period(field.path)) {
            if !field.path.starts_with(&format!("{section}.")) {
                values.set(field.path, "0s");
            }
        }
        let unused = match section {
            "nftables" => "iptables.masqueradeAll",
            _ => "nftables.masqueradeAll",
        };
        values.take(unused);
        values.take("portRange");
        values.to_json()
    }

    /// Returns the content of the file that `--write-config-to` writes.
    pub(crate) fn to_yaml(&self) -> String {
        to_yaml(&self.to_json(), 0)
    }
}

fn is_period(path: &str) -> bool {
    let name = path.split_once('.').map(|(_, name)| name);
    name.is_some_and(|name| PERIODS.contains(&name))
}

/// Appends the port to a bare IP address.
fn with_port(address: String, port: u16) -> String {
    match address.parse() {
        Ok(IpAddr::V4(address)) => format!("{address}:{port}"),
        Ok(IpAddr::V6(address)) => format!("[{address}]:{port}"),
        Err(_) => address,
    }
}

/// Returns a line for each field of the file that has no effect and no default value.
///
/// Files that kube-proxy or kubeadm wrote have every field, most of them with its default.
fn without_effect(values: &Values, origins: &Origins) -> Vec<String> {
    let fields = FIELDS.iter().filter(|field| values.differs(field));
    let notice = |field: &Field| match field.effect {
        Effect::Nothing(why) => {
            let name = origins.name(field.path);
            Some(format!("{name} has no effect here: {why}"))
        }
        Effect::Same | Effect::Differs(_) => None,
    };
    fields.filter_map(notice).collect()
}
