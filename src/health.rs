//! Active health checks
