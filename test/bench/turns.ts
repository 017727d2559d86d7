/**
 * Preloaded into a server that is measured (`node --import`): how much CPU time does each turn of its event loop use?
 *
 * A turn is what runs between two returns to libuv's poll that lead to a callback. CPU time, not wall time: what other processes take of
 * the core does not count. SIGUSR2 begins a measurement, or ends it and writes the turns, in milliseconds, as JSON to TURNS_FILE. With
 * TURNS_FROM_START the first one begins here, and its first turn loads the programs.
 *
 * The clock of the thread comes by FFI: `process.threadCpuUsage` is as coarse as the kernel's tick, 4 ms.
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

// The first callback of a turn arms an immediate, which runs when the turn's events are handled.
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
if (process.env['TURNS_FROM_START'] !== undefined) begin()
