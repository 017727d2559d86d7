/**
 * The baseline of the API: a bare Fastify route that reads one row by its primary key.
 *
 * Arguments: port, directory of PostgreSQL's socket, table, id.
 */
import { fastify } from 'fastify'
import pg from 'pg'

const [port, host = '', table = '', id = ''] = process.argv.slice(2)
const pool = new pg.Pool({ host, user: 'imds', database: 'postgres', max: 16 })
const server = fastify()

server.get('/', async () => {
  const { rows } = await pool.query(`select * from ${table} where id = $1`, [id])
  return rows[0] as object
})
await server.listen({ port: Number(port), host: '127.0.0.1' })
