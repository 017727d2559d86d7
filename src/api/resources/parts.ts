/** What the routes of every resource need. */
import type { Kysely } from 'kysely'
import type pg from 'pg'
import type { ComputeMode } from '../database/compute-actions.ts'
import type { Tables } from '../database/tables.ts'
import type { Site } from './nested.ts'

/** The database (`pool`: for prepared queries), where the API is, and how actions on servers are carried out. */
export interface ResourceParts { readonly tables: Kysely<Tables>, readonly pool: pg.Pool, readonly site: Site, readonly compute: ComputeMode }
