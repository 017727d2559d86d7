import js from '@eslint/js'
import { defineConfig } from 'eslint/config'
import tseslint from 'typescript-eslint'

/** Matches a first argument of more than 100 characters. Of a template only the text counts, not its expressions. */
const TOO_LONG =
  ':first-child:matches(Literal[value=/^.{101}/s], TemplateLiteral:has(> TemplateElement[value.raw=/.{101}/s]))'
const TESTS = [
  'CallExpression[callee.name=/^(test|describe)$/]',
  'CallExpression[callee.callee.object.name=/^(test|describe)$/]', // test.each(...)(name)
  'CallExpression[callee.object.name="t"][callee.property.name="test"]',
]
/** Absent is undefined (docs/architecture.md, Results); null is for JSON and for columns of a database. */
const NULL = {
  selector: 'Literal[raw="null"], TSNullKeyword',
  message: 'absent is undefined; null is for JSON, in the files that eslint.config.js lists',
}
/** Outcomes differ in `kind` or `ok`, and not in whether a field is there. */
const IN = {
  selector: 'BinaryExpression[operator="in"][left.type="Literal"]',
  message: 'a union differs in `kind` or `ok`; a field of JSON is looked for in the files that eslint.config.js lists',
}
/** The files of src/ that read or write JSON with null in it, or fields that may be missing. */
const JSON_FILES = [
  'src/metadata/record.ts', // an untrusted document may be null, or have it in any field
  'src/store/user-data.ts', // the same, for a document on its way into a store
  'src/imdsd/firewall/agent-report.ts', // an untrusted report may be null; no rules are applied: null
  'src/imdsd/journal/snapshot.ts',
  'src/imdsd/journal/encoding.ts',
  'src/imdsd/journal/state-files.ts', // null in the first line: no region, no hypervisor; in the line of an instance: no user-data
  'src/imdsd/operator/server.ts', // `revision` of an instance that is not served
  'src/imdsctl/firewall-agent/agent.ts', // the faults of `imdsctl --json firewall`: `instance` of a fault of the host
  'src/imdsctl/change.ts', // what `imdsctl --json` prints: no seal
  'src/imdsctl/commands.ts', // what `imdsctl --json` prints: no user-data, no revision
  'src/imdsctl/records.ts', // a line for `imdsctl put`: no user-data
  'src/imds-api/{fleet,operator}.ts', // a hypervisor that is not drained, and what its daemon has not announced
  'src/imds-api/database/**/*.ts', // a column that may be NULL
  'src/imds-api/resources/*.ts', // a representation that has null where a resource has no such value
  'src/imds-api/mail/sender.ts', // a column that may be null
  'src/imds-api/page/page.ts', // a column that may be null
  'src/imds-api/publish/*.ts', // rows, on their way to a record
  'src/imds-api/region/{collaborations,credentials,rows,tables}.ts', // rows, on their way to the database
  'src/imds-api/model/{client-limits,time,user-data}.ts', // a column or a field that may be null
  'src/imds-api/auth/secrets.ts', // a client without a secret
  'src/imds-api/auth/{token-endpoint,token-families,tokens}.ts', // a callback; and what was not used or not revoked
  'src/imds-api/compute/{caller,server}.ts', // a closed connection without a certificate; and a representation that has null
  'src/imds-api/http/*.ts', // a body, what it has in it, or what a callback gives, may be null
  'src/imds-api/changes/*.ts', // a column that may be NULL
  'src/imds-api/model/refusal.ts', // `field` of a fault of the whole request
]
const DEFAULT_EXPORT = { selector: 'ExportDefaultDeclaration', message: 'name what you export' }

export default defineConfig(
  { ignores: ['dist/', '.stryker/', '.tap/'] },
  js.configs.recommended,
  {
    files: ['**/*.ts'],
    extends: [tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      '@typescript-eslint/no-non-null-assertion': 'off', // used after a check of a length or key that the compiler cannot follow
      '@typescript-eslint/explicit-module-boundary-types': 'error',
      '@typescript-eslint/switch-exhaustiveness-check': ['error', { considerDefaultExhaustiveForUnions: true }],
      '@typescript-eslint/no-unused-vars': ['error', { ignoreRestSiblings: true }],
      'no-restricted-syntax': ['error', DEFAULT_EXPORT],
    },
  },
  {
    files: ['**/*.ts'],
    rules: { complexity: ['error', 30] }, // there is no limit on lines
  },
  {
    files: ['src/**/*.ts'],
    ignores: JSON_FILES,
    rules: { 'no-restricted-syntax': ['error', DEFAULT_EXPORT, NULL, IN] },
  },
  {
    files: ['test/**/*.ts'],
    rules: {
      'no-restricted-syntax': [
        'error',
        DEFAULT_EXPORT,
        {
          selector: TESTS.map((test) => `${test} > ${TOO_LONG}`).join(),
          message: "a test's name has at most 100 characters",
        },
        {
          selector: 'CallExpression[callee.property.name="testdir"]',
          message:
            'use testDirectory of test/support/test-directory.ts, which removes the directory after the teardowns',
        },
      ],
      '@typescript-eslint/no-floating-promises': 'off', // tap awaits the promises of its tests
      '@typescript-eslint/unbound-method': 'off', // the methods in test/support are closures
    },
  },
)
