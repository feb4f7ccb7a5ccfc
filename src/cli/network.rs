//! Networks on the command line.

use std::net::IpAddr;

use ipnet::IpNet;

/// Reads a network, or an address as a network of one; the form that clap takes as a value parser.
pub(super) fn parse(text: &str) -> Result<IpNet, String> {
    let host = |_| text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(host).map_err(|_| "neither a network such as 10.0.0.0/8 nor an address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_network_of_one() {
        assert_eq!(parse("10.0.0.7").unwrap(), "10.0.0.7/32".parse::<IpNet>().unwrap());
        assert_eq!(parse("2001:db8::/32").unwrap().prefix_len(), 32);
        assert!(parse("10.0.0.0/33").is_err());
    }
}
