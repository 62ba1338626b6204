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

/// Raises the number of files that this process may open to the permitted maximum.
///
/// Each health-check port needs two sockets, and the usual limit is 1,024.
pub(super) fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(
            "cannot raise the limit of open files: {error}; health-check ports of many Services may not \
             open"
        );
    }
}
