/**
 * Measures the CPU time of each turn of a server's event loop. The server loads this file first (`node --import`).
 *
 * A turn is everything that runs between two polls of libuv. It is measured in CPU time, not wall time, so that other
 * processes on the core do not count. SIGUSR2 begins a measurement; the next one ends it and writes the turns, in
 * milliseconds, as JSON to TURNS_FILE.
 *
 * The thread's clock is read by FFI, because `process.threadCpuUsage` has a resolution of only 4 ms, the kernel's tick.
 */
import { createHook } from 'node:async_hooks'
import { dlopen } from 'node:ffi'
import { renameSync, writeFileSync } from 'node:fs'

const CLOCK_THREAD_CPUTIME_ID = 3
const { functions } = dlopen('libc.so.6', { clock_gettime: { return: 'i32', arguments: ['i32', 'buffer'] } })
const timespec = new BigInt64Array(2)

function cpuMs(): number {
  functions.clock_gettime(CLOCK_THREAD_CPUTIME_ID, timespec)
  return Number(timespec[0]) * 1e3 + Number(timespec[1]) / 1e6
}

let turns: number[] | undefined
let isArmed = false
let lastMs = 0

function endTurn(): void {
  isArmed = false
  const nowMs = cpuMs()
  turns?.push(nowMs - lastMs)
  lastMs = nowMs
}

// The first callback of a turn schedules an immediate, which runs after the turn's other callbacks.
const hook = createHook({
  trackPromises: false,
  before: () => {
    if (isArmed) return
    isArmed = true
    setImmediate(endTurn)
  },
})

function begin(): void {
  turns = []
  lastMs = cpuMs()
  hook.enable()
}

function end(measured: readonly number[]): void {
  hook.disable()
  turns = undefined
  const file = process.env['TURNS_FILE']!
  writeFileSync(`${file}.tmp`, JSON.stringify(measured))
  renameSync(`${file}.tmp`, file)
}

process.on('SIGUSR2', () => {
  if (turns === undefined) begin()
  else end(turns)
})
