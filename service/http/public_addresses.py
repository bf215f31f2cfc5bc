"""Whether an IP address is public: the rule of the SSRF guard. Knows no names and calls nobody."""

import ipaddress

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: IPAddress) -> bool:
    """Whether the address is globally reachable, and so is every IPv4 address embedded in it."""
    if isinstance(address, ipaddress.IPv6Address):
        carried = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            carried.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address.is_site_local or not all(is_public(one) for one in carried if one is not None):
            return False  # of site-local ones (RFC 3879), which some networks still use, ipaddress says that they are global
    return address.is_global and not address.is_multicast and not address.is_reserved
