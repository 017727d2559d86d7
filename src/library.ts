/** The public library, for control planes: `import { openStore, waitForInstance } from 'imds'`. */
// load both now: when `openStore` imports them, an upgrade may have replaced the files
import './store/files/publisher.ts'
import './store/redis/publisher.ts'

export { parse } from './metadata/record.ts'
export { InstanceSchema } from './metadata/schema.ts'
export { waitForInstance, type Waited, type WaitFor } from './imdsd/operator/wait.ts'
export * from './store/open.ts'
