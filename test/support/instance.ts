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
