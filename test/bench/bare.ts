/** The baseline: a bare `node:http` server that always returns the same response. */
import { createServer } from 'node:http'

const [port, body = ''] = process.argv.slice(2)

createServer((_request, response) => {
  response.writeHead(200, { 'Content-Type': 'text/plain', 'Content-Length': body.length })
  response.end(body)
}).listen(Number(port), '127.0.0.1')
