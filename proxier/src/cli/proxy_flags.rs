//! kube-proxy's flags on the command line.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

use crate::cli::config::{self, Effect, FLAGS, Flag, FlagValues, NodeSettings, Resolved};

/// The greatest number of bytes that are read of a configuration file: more than the parser
/// accepts, so that it reports a file that is too long.
const MAX_LENGTH: u64 = 2 << 20;

/// The values of kube-proxy's flags, in the order of [`FLAGS`]; repeated ones in that of the command line.
#[derive(Clone, Debug, Default)]
pub(super) struct ProxyFlags(Vec<(&'static Flag, String)>);

impl ProxyFlags {
    /// Reads the configuration file, if there is one, and combines it with the flags.
    ///
    /// # Errors
    /// If a flag or a field is invalid, or the file is unreadable.
    pub(super) fn resolve(
        &self,
        beside_file: &'static [&'static str],
    ) -> anyhow::Result<(Resolved, NodeSettings)> {
        let mut flags = FlagValues::parse(&self.0).context("invalid flags")?;
        flags.beside_file = beside_file;
        let path = match &*flags.command.text("config") {
            "" => None,
            path => Some(PathBuf::from(path)),
        };
        let text = path.as_ref().map(|path| read(path)).transpose()?;
        let file = path.as_deref().zip(text.as_deref());
        config::resolve(&flags, file).context("invalid configuration")
    }

    /// Returns the version request: `true`, `raw`, or `None` without one.
    ///
    /// The caller checks it before it reads the configuration, because an invalid file must not hide the
    /// version.
    pub(super) fn version(&self) -> Option<&str> {
        let last = self.0.iter().rev().find(|(flag, _)| flag.name == "version");
        let text = last.map(|(_, text)| text.as_str());
        text.filter(|text| matches!(*text, "raw" | "1" | "t" | "T" | "true" | "TRUE" | "True"))
    }
}

fn read(path: &std::path::Path) -> anyhow::Result<String> {
    use std::io::Read as _;
    let reading = || format!("reading the configuration file {}", path.display());
    let file = std::fs::File::open(path).with_context(reading)?;
    let mut text = String::new();
    // The path may name a device whose content never ends, such as /dev/zero.
    let mut bounded = file.take(MAX_LENGTH);
    bounded.read_to_string(&mut text).with_context(reading)?;
    Ok(text)
}

impl Args for ProxyFlags {
    fn augment_args(command: Command) -> Command {
        let command = command.next_help_heading("kube-proxy's flags");
        let command = FLAGS.iter().map(argument).fold(command, Command::arg);
        command.next_help_heading(None::<&str>)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Returns the definition of a flag.
///
/// Its value is a string here and is parsed later by the types of the table. They follow Go's syntax, and the
/// error names all invalid flags, not only the first one.
fn argument(flag: &'static Flag) -> Arg {
    let mut argument = Arg::new(flag.name)
        .long(flag.name)
        .help(help(flag))
        .action(ArgAction::Append)
        .allow_hyphen_values(true)
        .hide(["healthz-port", "metrics-port"].contains(&flag.name));
    argument = match flag.name {
        "hostname-override" => argument.visible_alias("node-name"),
        "version" => argument.value_name("true|raw"),
        _ => argument,
    };
    if let Some(short) = flag.short {
        argument = argument.short(short);
    }
    if flag.is_switch() {
        argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
    } else {
        argument.num_args(1).value_name(flag.value)
    }
}

fn help(flag: &Flag) -> String {
    let default = match flag.default {
        "" | "false" => String::new(),
        default => format!(" [default: {default}]"),
    };
    let effect = match flag.effect() {
        Effect::Nothing(_) => " (accepted without effect)",
        Effect::Same | Effect::Differs(_) => "",
    };
    format!("{}{effect}{default}", flag.help)
}

impl FromArgMatches for ProxyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut values = Self::default();
        values.update_from_arg_matches(matches)?;
        Ok(values)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for flag in &FLAGS {
            let given = matches.get_many::<String>(flag.name);
            self.0
                .extend(given.into_iter().flatten().map(|text| (flag, text.clone())));
        }
        Ok(())
    }
}

/// Rewrites a command line in kube-proxy's form to this program's.
///
/// kube-proxy has no commands, so arguments that begin with a flag belong to `run`. In names of flags,
/// kube-proxy accepts `_` in place of `-`.
pub(super) fn normalize(arguments: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut arguments = arguments.into_iter();
    let mut normalized: Vec<String> = arguments.next().into_iter().collect();
    let is_kube_proxy = normalized
        .first()
        .and_then(|program| program.rsplit('/').next())
        .is_some_and(|name| name == "kube-proxy");
    let mut rest = arguments.peekable();
    // These describe this program, with its commands, if no command is given.
    let own = ["-h", "--help", "-V", "--version"];
    let is_flag = |first: &String| first.starts_with('-') && !own.contains(&first.as_str());
    if rest.peek().map_or(is_kube_proxy, is_flag) {
        normalized.push("run".to_owned());
    }
    let mut is_past_flags = false;
    for argument in rest {
        is_past_flags |= argument == "--";
        if is_past_flags || !argument.starts_with("--") {
            normalized.push(argument);
            continue;
        }
        let end = argument.find('=').unwrap_or(argument.len());
        let (name, value) = argument.split_at(end);
        normalized.push(name.replace('_', "-") + value);
    }
    normalized
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_kube_proxy_are_those_of_run() {
        for (given, expected) in [
            ("ipvs-proxier --config=f", "ipvs-proxier run --config=f"),
            (
                "ipvs-proxier -v 2 --x_y=a_b",
                "ipvs-proxier run -v 2 --x-y=a_b",
            ),
            (
                "ipvs-proxier --version=raw",
                "ipvs-proxier run --version=raw",
            ),
            ("ipvs-proxier --version", "ipvs-proxier --version"),
            ("ipvs-proxier --help", "ipvs-proxier --help"),
            ("ipvs-proxier plan --a_b x_y", "ipvs-proxier plan --a-b x_y"),
            ("ipvs-proxier", "ipvs-proxier"),
            ("/usr/local/bin/kube-proxy", "/usr/local/bin/kube-proxy run"),
        ] {
            let words = given.split(' ').map(str::to_owned);
            assert_eq!(normalize(words).join(" "), expected);
        }
    }
}
