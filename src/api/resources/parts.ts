/** What the routes of every resource need. */
import type { Kysely } from 'kysely'
import type pg from 'pg'
import type { Tables } from '../database/tables.ts'
import type { Site } from './nested.ts'

/** The database (`pool`: for prepared queries), and where the API is. */
export interface ResourceParts { readonly tables: Kysely<Tables>, readonly pool: pg.Pool, readonly site: Site }
