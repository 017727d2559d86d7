/**
 * What a control plane imports: `import { openStore, waitForInstance } from 'imds'`.
 */
export { waitForInstance, type Waited, type WaitFor } from './operator/wait.ts'
export * from './store/open.ts'
