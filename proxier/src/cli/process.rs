//! Properties of this process.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Writes `/proc/self/oom_score_adj`, so that the kernel kills other processes first when memory is
/// short.
///
/// A failure is logged at level debug only, as in kube-proxy: a lower value needs CAP_SYS_RESOURCE, and
/// the proxy works without it. kube-proxy tries twice, 100 ms apart.
pub(super) fn adjust_oom_score(score: i32) {
    let write = || std::fs::write("/proc/self/oom_score_adj", score.to_string());
    let written = write().or_else(|_| {
        std::thread::sleep(Duration::from_millis(100));
        write()
    });
    if let Err(error) = written {
        tracing::debug!("setting oom_score_adj to {score}: {error}; it stays as it is");
    }
}

/// The most files for which the limit is raised. Credential plugins inherit it, and some programs close each descriptor that
/// they may have: that takes minutes where containers may have a billion.
const MOST_FILES: u64 = 1 << 20;

/// Raises the number of files that this process may open to the permitted maximum.
///
/// Each health-check port needs two sockets, and the usual limit is 1,024.
pub(super) fn raise_file_limit() {
    let raised = raised(getrlimit(Resource::Nofile));
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(
            "cannot raise the limit of open files: {error}; health-check ports of many Services may not \
             open"
        );
    }
}

/// Returns the limit to set in place of `limit`; `None` is no limit.
fn raised(limit: Rlimit) -> Rlimit {
    let Rlimit { current, maximum } = limit;
    let most = maximum.map_or(MOST_FILES, |maximum| maximum.min(MOST_FILES));
    Rlimit {
        current: current.map(|current| current.max(most)),
        maximum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_files_is_raised_to_a_million_at_most() {
        for (current, maximum, expected) in [
            (Some(1_024), Some(4_096), Some(4_096)),
            (Some(1_024), Some(1 << 30), Some(MOST_FILES)),
            (Some(1_024), None, Some(MOST_FILES)),
            (Some(1 << 21), None, Some(1 << 21)),
            (None, None, None),
        ] {
            let raised = raised(Rlimit { current, maximum });
            assert_eq!((raised.current, raised.maximum), (expected, maximum));
        }
    }
}
