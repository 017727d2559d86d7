/**
 * Third-party clients of the API: Debian's requests-oauthlib gets an access token, and Libcloud's driver uses it. (The
 * driver's own token request asks for a grant "none", which no document has.)
 */
import t from 'tap'
import { startImdsApi } from '../support/programs/api.ts'
import { must } from '../support/programs/processes.ts'
import { CLIENT_OF, ONE, secretOf } from '../support/fixtures/region.ts'
import { without } from '../support/packages.ts'

/** Debian's packages are for Debian's Python. */
const PYTHON = '/usr/bin/python3'
const skip = without('python3-libcloud', 'python3-requests-oauthlib')

const LIBCLOUD = `
import base64, json, os, sys, time
os.environ['OAUTHLIB_INSECURE_TRANSPORT'] = '1' # plain HTTP
from oauthlib.oauth2 import BackendApplicationClient
from requests_oauthlib import OAuth2Session
base_url, client_id, secret, store = sys.argv[1:]
session = OAuth2Session(client=BackendApplicationClient(client_id=client_id))
token = session.fetch_token(token_url=base_url + '/token', auth=(client_id, secret))
from libcloud.compute.types import Provider
from libcloud.compute.providers import get_driver
driver = get_driver(Provider.BRIGHTBOX)(client_id, secret, secure=False, host='127.0.0.1', port=int(base_url.split(':')[-1]))
driver.connection.token = session.access_token
[image, *_], [size, *_], [location, *_] = driver.list_images(), driver.list_sizes(), driver.list_locations()
print(image.name, size.name, location.name)

node = driver.create_node(name='by libcloud', size=size, image=image, location=location, ex_userdata='#cloud-config')
print(node.name, node.state)
driver.wait_until_running([node], wait_period=0.1, timeout=60, ssh_interface='private_ips')
get_node = lambda: [other for other in driver.list_nodes() if other.id == node.id][0]
print(get_node().state, base64.b64decode(json.load(open(store + '/' + node.id + '.json'))['userDataBase64']).decode())

ip = driver.ex_create_cloud_ip(reverse_dns='www.example.com')
print(ip['status'], ip['reverse_dns'])
print(driver.ex_map_cloud_ip(ip['id'], get_node().extra['interfaces'][0]['id']))
print(get_node().public_ips == [ip['public_ip']], [other['status'] for other in driver.ex_list_cloud_ips()])
while json.load(open(store + '/' + node.id + '.json'))['record']['interfaces'][0]['cloudIps'] == []: time.sleep(0.05)
try: driver.ex_destroy_cloud_ip(ip['id'])
except Exception as error: print(error)
print(driver.ex_update_cloud_ip(ip['id'], ''), driver.ex_unmap_cloud_ip(ip['id']), driver.ex_destroy_cloud_ip(ip['id']))
print(driver.destroy_node(node))
image.id = 'img-00000'
try: driver.create_node(name='', size=size, image=image)
except Exception as error: print(error)
`

t.test('third-party clients', { skip }, async (t) => {
  const api = await startImdsApi(t)
  const client = CLIENT_OF[ONE]
  const lines = async () => {
    const output = await must([
      PYTHON,
      '-c',
      LIBCLOUD,
      api.baseUrl,
      client,
      secretOf(client),
      api.env['IMDS_STORE']!.replace('file:', ''),
    ])
    return output.toString().trim().split('\n')
  }

  await t.test('Libcloud lists, creates with user-data, maps, unmaps and destroys', async (t) => {
    t.match(await lines(), [
      'Debian 12 Small gb1-a',
      'by libcloud pending',
      'running #cloud-config',
      'unmapped www.example.com',
      'True',
      "True ['mapped']",
      /^resource_conflict: cip-\w{5} is mapped/,
      'True True True',
      'True',
      'unprocessable_entity: image: img-00000 does not exist',
    ])
  })
})
