/** What the routes of every resource need. */
import type { Kysely } from 'kysely'
import type { Tables } from '../database/tables.ts'
import type { Site } from './nested.ts'

/** The database, and where the API is. */
export interface ResourceParts { readonly tables: Kysely<Tables>, readonly site: Site }
