/** A valid record for tests, as the control plane would publish it. Fields of `change` replace the whole field of that name. */
export function anInstance(change: Record<string, unknown> = {}): Record<string, unknown> {
  return {
    schema: 1,
    revision: 1,
    id: 'srv-abcde',
    fqdn: 'srv-abcde.gb1.example.com',
    account: 'acc-xyz12',
    serverType: { id: 'typ-8fych', handle: '2gb.ssd' },
    image: 'img-4ltjf',
    zone: { id: 'zon-remk1', handle: 'gb1-a' },
    region: 'gb1',
    interfaces: [{
      id: 'int-ds42k',
      macAddress: '02:24:19:00:00:ee',
      ipv4Addresses: ['10.0.0.2/30'],
      cloudIps: [{ id: 'cip-jsjc5', publicIpv4: '198.51.100.7', fqdn: 'cip-198-51-100-7.gb1.example.com' }],
    }],
    serverGroups: [{ id: 'grp-sda44', name: 'default' }],
    publicKeys: [{ user: 'usr-xl7gd', key: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD ada@example' }],
    hypervisors: ['hv1'],
    ...change,
  }
}

/** A record that fills every category: two interfaces, DHCPv6, an IPv6 prefix, cloud IPs, two keys, tags, every kind of block device. */
export function aFullInstance(change: Record<string, unknown> = {}): Record<string, unknown> {
  return anInstance({
    interfaces: [
      {
        id: 'int-ds42k',
        macAddress: '02:24:19:00:00:ee',
        ipv4Addresses: ['10.0.0.2/30', '10.0.9.2/24'],
        ipv6Addresses: ['2a02:1348:178::2/64', '2a02:1348:178::3/64'],
        ipv6Prefixes: ['2a02:1348:178:1::/64'],
        dhcpv6: true,
        cloudIps: [
          { id: 'cip-jsjc5', publicIpv4: '198.51.100.7', publicIpv6: '2a02:1348:ffff::7', fqdn: 'cip-198-51-100-7.gb1.example.com' },
          { id: 'cip-k1k2k', publicIpv4: '198.51.100.8', fqdn: 'cip-198-51-100-8.gb1.example.com' },
        ],
      },
      { id: 'int-zz9zz', macAddress: '02:24:19:00:00:0a', ipv4Addresses: ['10.1.0.2/24'] },
    ],
    serverGroups: [{ id: 'grp-sda44', name: 'default' }, { id: 'grp-web01', name: 'web servers' }],
    publicKeys: [
      { user: 'usr-xl7gd', key: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD ada@example' },
      { user: 'usr-bob00', key: 'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7 bob' },
    ],
    tags: { Name: 'web-1', empty: '', ünicode: 'not a key', '5=x': 'an index to cloud-init', 'with space': 'x', _index: 'x', '..': 'x', 'a:b@c': 'é' },
    blockDevices: { ami: '/dev/sda1', root: '/dev/sda1', ebs2: 'sdc', ebs1: 'sdb', ebs10: 'sdk', ephemeral0: 'sdd', swap: 'sda3' },
    options: { instanceMetadataTags: 'enabled' },
    ...change,
  })
}

/** A record with as many paths as the bounds allow. */
export function theLargestInstance(): Record<string, unknown> {
  const many = <T>(count: number, make: (i: number) => T) => Array.from({ length: count }, (_, i) => make(i))
  return aFullInstance({
    interfaces: many(32, (i) => ({
      id: `int-${String(i)}`, macAddress: `02:24:19:00:00:${i.toString(16).padStart(2, '0')}`,
      ipv4Addresses: [`10.0.${String(i)}.2/24`], ipv6Addresses: [`fd00::${String(i + 1)}/64`], dhcpv6: true,
      cloudIps: many(64, (n) => ({ id: 'cip-jsjc5', publicIpv4: `198.18.${String(i)}.${String(n)}`, fqdn: 'a.example.com' })),
    })),
    serverGroups: many(256, (i) => ({ id: `grp-${String(i)}`, name: `group ${String(i)}` })),
    publicKeys: many(256, (i) => ({ user: `usr-${String(i)}`, key: 'ssh-ed25519 AAAA' })),
    tags: Object.fromEntries(many(50, (i) => [`tag-${String(i)}`, 'x'])),
    blockDevices: { ami: 'sda1', root: 'sda1', swap: 'sda3', ...Object.fromEntries(many(253, (i) => [`ebs${String(i)}`, 'sdb'])) },
  })
}
