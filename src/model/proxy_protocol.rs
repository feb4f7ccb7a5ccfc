//! The PROXY protocol, versions 1 and 2 (HAProxy's doc/proxy-protocol.txt).
