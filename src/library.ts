/**
 * What a control plane imports: `import { openStore, waitForInstance } from 'imds'`.
 */
import './store/files/publisher.ts' // `openStore` imports the two itself; here they are loaded at once, before an upgrade can replace the files
import './store/redis/publisher.ts'

export { parse } from './metadata/record.ts'
export { InstanceSchema } from './metadata/schema.ts'
export { waitForInstance, type Waited, type WaitFor } from './operator/wait.ts'
export * from './store/open.ts'
