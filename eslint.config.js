import js from '@eslint/js'
import stylistic from '@stylistic/eslint-plugin'
import { defineConfig } from 'eslint/config'
import tseslint from 'typescript-eslint'

/** Matches a first argument of more than 100 characters. Of a template only the text counts, not its expressions. */
const TOO_LONG = ':first-child:matches(Literal[value=/^.{101}/s], TemplateLiteral:has(> TemplateElement[value.raw=/.{101}/s]))'
const TESTS = [
  'CallExpression[callee.name=/^(test|describe)$/]',
  'CallExpression[callee.callee.object.name=/^(test|describe)$/]', // test.each(...)(name)
  'CallExpression[callee.object.name="t"][callee.property.name="test"]',
]
const DEFAULT_EXPORT = { selector: 'ExportDefaultDeclaration', message: 'name what you export' }

export default defineConfig(
  { ignores: ['dist/', '.stryker/', '.tap/'] },
  js.configs.recommended,
  stylistic.configs.customize({ quotes: 'single', semi: false, braceStyle: '1tbs', arrowParens: true }),
  {
    files: ['**/*.ts'],
    extends: [tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      '@typescript-eslint/no-non-null-assertion': 'off', // used after a check of a length or key that the compiler cannot follow
      '@typescript-eslint/explicit-module-boundary-types': 'error',
      '@typescript-eslint/switch-exhaustiveness-check': ['error', { considerDefaultExhaustiveForUnions: true }],
      'no-restricted-syntax': ['error', DEFAULT_EXPORT],
    },
  },
  {
    rules: {
      '@stylistic/max-len': ['error', { code: 160, ignoreUrls: true, ignoreStrings: true, ignoreTemplateLiterals: true, ignoreRegExpLiterals: true }],
      '@stylistic/max-statements-per-line': ['error', { max: 2 }],
      '@stylistic/quote-props': ['error', 'as-needed'],
      '@stylistic/object-curly-newline': 'off',
      '@stylistic/multiline-ternary': 'off',
      '@stylistic/indent-binary-ops': 'off',
      '@stylistic/operator-linebreak': 'off',
      '@stylistic/member-delimiter-style': ['error', { multiline: { delimiter: 'none' }, singleline: { delimiter: 'comma' } }],
    },
  },
  {
    files: ['**/*.ts'],
    rules: { complexity: ['error', 30] }, // there is no limit on lines
  },
  {
    files: ['test/**/*.ts'],
    rules: {
      'no-restricted-syntax': ['error', DEFAULT_EXPORT, { selector: TESTS.map((test) => `${test} > ${TOO_LONG}`).join(), message: 'a test\'s name has at most 100 characters' }],
      '@typescript-eslint/no-floating-promises': 'off', // tap awaits the promises of its tests
      '@typescript-eslint/unbound-method': 'off', // the methods in test/support are closures
      '@stylistic/max-len': ['error', { code: 220, ignoreStrings: true, ignoreTemplateLiterals: true, ignoreRegExpLiterals: true }], // rows of test tables
    },
  },
)
