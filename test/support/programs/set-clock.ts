/**
 * Moves the wall clock of a process ahead by the milliseconds in the file CLOCK_FILE, which it reads at each call.
 * Loaded by `node --import`.
 */
import { readFileSync } from 'node:fs'

const real = Date.now
const path = process.env['CLOCK_FILE'] ?? ''
Date.now = () => real() + Number(readFileSync(path, 'utf8'))
